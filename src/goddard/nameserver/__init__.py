"""The name server: which brokers there are, and which of them serve a topic.

Brokers register and are watched (``brokers``), clients and administrators ask (``requests``), the
tables behind both are pure (``routes``, and ``views`` of them). ``NameServer`` is all of it on one
port, for a daemon or inside any asyncio program. It imports little, so that it listens within a
fraction of a second.
"""

from goddard.nameserver.routes import RoutePolicy, RouteTable
from goddard.nameserver.server import NameServer

__all__ = ["NameServer", "RoutePolicy", "RouteTable"]
