"""The broker: takes, keeps and hands out messages, and answers everything asked about them.

``Broker`` is all of it on one port, for a daemon or inside any asyncio program; ``BrokerConfig``
has RocketMQ's property names. Everything here belongs to the loop it was started on.

Messages come in by ``send`` (plain ones by ``hotpath``), ``sendback`` and ``reply``, through
``incoming`` to the one ``appender``; ``delay`` and ``transaction`` hand them on later. They go out
by ``pull``, ``holds`` keeping the pulls that wait. ``clients``, ``locks`` and ``offsets`` know who
consumes what; ``admin_*`` and ``queries`` are for tools; ``registration`` tells the name servers.
"""

from goddard.extras import missing_extra

try:
    from goddard.broker.broker import Broker
    from goddard.broker.settings import BrokerConfig
except ImportError as error:
    raise missing_extra(error) or error from None

__all__ = ["Broker", "BrokerConfig"]
