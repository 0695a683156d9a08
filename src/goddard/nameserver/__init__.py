"""The name server: knows the brokers, and which of them serve a topic.

``brokers`` handles the requests of brokers and removes those that expire, ``requests`` handles
those of clients and administrators; both use pure tables (``routes``, and ``views`` of them).
``NameServer`` serves them on one port, in a daemon or inside any asyncio program. It imports
little, so that it listens within a fraction of a second.
"""

from goddard.nameserver.routes import RoutePolicy, RouteTable
from goddard.nameserver.server import NameServer

__all__ = ["NameServer", "RoutePolicy", "RouteTable"]
