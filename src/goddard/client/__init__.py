"""Producers, consumers and administration for any RocketMQ cluster.

The classes in this package are for asyncio; ``goddard.aio`` exports them. ``goddard`` exports the
blocking classes, which use them. Clients with the same client id share a Session (connections,
routes, heartbeats). A client runs on the event loop that it was started on.
"""
