"""Sockets and the event loop: the only seam between asyncio and the protocol.

``Server`` answers requests by code, ``Client`` makes them by address, ``Connection`` is either end.
Everything here belongs to one event loop and is called from its thread only.
"""
