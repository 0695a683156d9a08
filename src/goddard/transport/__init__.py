"""Sockets and the event loop: the only code between asyncio and the protocol.

``Server`` handles requests by code, ``Client`` sends them by address, ``Connection`` is either end.
Everything here belongs to one event loop and must be called from its thread.
"""

from goddard.transport.client import Client, ClientOptions
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler, Handlers
from goddard.transport.loop import new_event_loop, run
from goddard.transport.options import ConnectionOptions
from goddard.transport.server import Server, ServerOptions
from goddard.transport.tasks import Tasks
from goddard.transport.tls import TlsMode, TlsOptions

__all__ = [
    "Client",
    "ClientOptions",
    "Connection",
    "ConnectionOptions",
    "Handler",
    "Handlers",
    "Server",
    "ServerOptions",
    "Tasks",
    "TlsMode",
    "TlsOptions",
    "new_event_loop",
    "run",
]
