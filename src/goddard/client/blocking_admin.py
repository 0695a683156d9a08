"""Administration for threads and scripts.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from typing import Unpack

from goddard.client.admin.admin import Admin as AsyncAdmin
from goddard.client.blocking import BlockingClient
from goddard.client.blocking_admin_access import AdminAccess
from goddard.client.blocking_admin_brokers import AdminBrokers
from goddard.client.blocking_admin_clients import AdminClients
from goddard.client.blocking_admin_controllers import AdminControllers
from goddard.client.blocking_admin_groups import AdminGroups
from goddard.client.blocking_admin_messages import AdminMessages
from goddard.client.blocking_admin_name_servers import AdminNameServers
from goddard.client.blocking_admin_offsets import AdminOffsets
from goddard.client.blocking_admin_topics import AdminTopics
from goddard.client.options import SessionKeywords
from goddard.clock import Clock


class Admin(
    AdminTopics,
    AdminGroups,
    AdminOffsets,
    AdminClients,
    AdminMessages,
    AdminBrokers,
    AdminNameServers,
    AdminControllers,
    AdminAccess,
):
    """Looks after topics, groups, offsets, brokers and name servers.

    Brokers are given by name, which means the master, or by address ``host:port``. Where a
    method takes ``cluster`` or ``broker``, one of them has to be given, unless it says what
    happens without. Names are as brokers know them, a namespace included.

    A broker or name server that refuses is a BrokerError; one that does not answer a
    RemotingError. Methods that ask several servers ask all of them, and raise
    PartialFailureError if some fail: it says which, and has the answers of the others.
    Arguments that cannot be right are a ConfigError or a TypeError before anybody is asked.
    """

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        timeout_ms: int = 5000,
        **options: Unpack[SessionKeywords],
    ) -> None:
        """``timeout_ms`` is for each request; what takes a broker long gets a multiple of it."""
        BlockingClient.__init__(self, AsyncAdmin(name_servers, timeout_ms=timeout_ms, **options))

    @property
    def clock(self) -> Clock:
        """Where the time comes from."""
        return self._core.clock

    @property
    def timeout_ms(self) -> int:
        """How long one request may take."""
        return self._core.timeout_ms

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of the name servers."""
        return self._core.name_servers
