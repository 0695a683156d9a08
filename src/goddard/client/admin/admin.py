"""The administration of a cluster: everything that mqadmin does, as methods.

The methods are in one class per subject, each in its own module; ``Admin`` has all of them and the
connection. ``OffsetMethods`` and ``MessageMethods`` bring those of topics, groups, brokers and name
servers.
"""

from typing import Self, Unpack

from goddard.client.admin.access import AccessMethods
from goddard.client.admin.clients import ClientMethods
from goddard.client.admin.controllers import ControllerMethods
from goddard.client.admin.messages import MessageMethods
from goddard.client.admin.offsets import OffsetMethods
from goddard.client.checks import check_range
from goddard.client.errors import NotRunningError, already_started
from goddard.client.identity import ProcessGuard
from goddard.client.options import SessionKeywords, session_options
from goddard.client.session import Session
from goddard.client.values import ServiceState
from goddard.clock import Clock
from goddard.environment import Environment


class Admin(OffsetMethods, MessageMethods, ClientMethods, ControllerMethods, AccessMethods):
    """Administers topics, groups, offsets, brokers and name servers.

    A broker is given by its name, which means the master, or by its address ``host:port``. Where a
    method takes ``cluster`` and ``broker``, give exactly one of them, unless the method says what
    happens without. Names of topics and groups include the namespace.

    A broker or name server that refuses a request raises BrokerError, one that does not answer
    RemotingError. A request to several servers is sent to all of them; if some fail,
    PartialFailureError names them and has the answers of the others. Invalid arguments raise
    ConfigError or TypeError before any request is sent.
    """

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        timeout_ms: int = 5_000,
        **options: Unpack[SessionKeywords],
    ) -> None:
        """``timeout_ms`` is for each request; slow kinds of requests get a multiple of it."""
        # Must be the first attribute, because it refuses pickling.
        self._guard = ProcessGuard()
        self._environment = options.get("environment") or Environment()
        self._timeout_ms = check_range("timeout_ms", timeout_ms, 1)
        # Its own session: administration of several clusters from one process is common.
        self._options = session_options(name_servers, options).for_process(self._environment)
        self._state = ServiceState.CREATED
        self._session: Session | None = None

    @property
    def state(self) -> ServiceState:
        """Where the client is in its life."""
        return self._state

    @property
    def client_id(self) -> str:
        """The name that servers know this client by: ``ip@instance``."""
        return self._options.client_id

    @property
    def clock(self) -> Clock:
        """The source of the time."""
        return self._environment.clock

    @property
    def timeout_ms(self) -> int:
        """How long one request may take."""
        return self._timeout_ms

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of the name servers."""
        return self.session.name_servers

    @property
    def session(self) -> Session:
        """Makes the requests; NotRunningError unless started."""
        self._guard.check()
        session = self._session
        if session is None:
            raise NotRunningError(
                f"The admin service state not OK, {self._state.value}",
                advice="use it inside 'async with Admin(...)', or call start() first",
            )
        return session

    async def start(self) -> None:
        """Start. No request is sent yet; a client starts once."""
        self._guard.check()
        if self._state is not ServiceState.CREATED:
            raise already_started("admin", self._state.value)
        self._state = ServiceState.START_FAILED
        session = Session.shared(self._options, environment=self._environment)
        await session.start()
        self._session = session
        self._state = ServiceState.RUNNING

    async def stop(self) -> None:
        """Close the connections. Does nothing if the client is not running."""
        session, self._session = self._session, None
        if session is None:
            return
        self._state = ServiceState.STOPPED
        await session.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
