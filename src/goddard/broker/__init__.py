"""The broker: stores messages, serves consumers, and answers the requests of tools.

``Broker`` is a whole broker on one port, for a daemon or inside any asyncio program;
``BrokerConfig`` has RocketMQ's property names. Everything here belongs to the loop that the broker
was started on.

``sending`` stores messages: every way of sending ends in its one ``appender``. ``consuming`` serves
pulls and knows the members, offsets and locks of groups. ``lane`` does the same for plain sends and
pulls, faster. ``tables`` has topics and groups, ``admin`` the requests of tools, and
``registration`` registers with the name servers.
"""

from goddard.extras import missing_extra

try:
    from goddard.broker.broker import Broker
    from goddard.broker.settings import BrokerConfig
except ImportError as error:
    raise missing_extra(error) or error from None

__all__ = ["Broker", "BrokerConfig"]
