"""The group at the name servers: who is registered (901), and that this broker lives (904).

With ``enableSlaveActingMaster`` a name server forgets a broker that is silent for
``brokerNotActiveTimeoutMillis``, so heartbeats are sent every second, and the members are asked for
as often. Each name server that answers counts. Belongs to the loop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from goddard.broker.settings import Settings
from goddard.clock import Clock
from goddard.errors import GoddardError
from goddard.protocol.bodies import BrokerMemberGroupAnswer, decode_body
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.cluster import BrokerHeartbeatRequest, GetBrokerMemberGroupRequest
from goddard.protocol.responses import check
from goddard.replication.acting import merge_members
from goddard.transport.client import Client

_logger = logging.getLogger(__name__)

_TIMEOUT_MS: Final = 2_000
_CLOSE_SECONDS: Final = 0.5


class Membership:
    """Asks from ``start`` to ``stop``.

    ``on_round`` is called with the members, or None if no name server answered. ``is_registered``
    says whether to send heartbeats.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        is_registered: Callable[[], bool],
        on_round: Callable[[dict[int, str] | None], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._is_registered = is_registered
        self._on_round = on_round
        self._client = Client(clock=clock)
        self._is_wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="broker group")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._client.close(_CLOSE_SECONDS)

    def ask_now(self) -> None:
        """Do not wait for the next round."""
        self._is_wanted.set()

    async def _run(self) -> None:
        while True:
            self._is_wanted.clear()
            config = self._settings.current
            try:
                members, *_ = await asyncio.gather(
                    self._members(), *(self._heartbeat(each) for each in config.name_servers)
                )
                await self._on_round(members)
            except Exception:
                _logger.exception("asking for the members of the group failed once and goes on")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(config.member_poll_ms / 1000):
                    await self._is_wanted.wait()

    async def _members(self) -> dict[int, str] | None:
        name_servers = self._settings.current.name_servers
        if not name_servers:
            return {}
        answers = await asyncio.gather(*(self._ask(address) for address in name_servers))
        known = [answer for answer in answers if answer is not None]
        return merge_members(known) if known else None

    async def _ask(self, address: str) -> dict[int, str] | None:
        config = self._settings.current
        header = GetBrokerMemberGroupRequest(
            cluster_name=config.cluster_name, broker_name=config.broker_name
        )
        request = RemotingCommand(RequestCode.GET_BROKER_MEMBER_GROUP, header.encode())
        try:
            answer = check(await self._client.request(address, request, _TIMEOUT_MS), address)
            group = decode_body(answer.body, BrokerMemberGroupAnswer).broker_member_group
        except GoddardError as error:
            _logger.debug("%s did not tell the members of the group: %s", address, error)
            return None
        return {} if group is None else group.broker_addrs

    async def _heartbeat(self, address: str) -> None:
        if not self._is_registered():
            return
        config = self._settings.current
        header = BrokerHeartbeatRequest(
            cluster_name=config.cluster_name,
            broker_addr=config.broker_address,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
        )
        request = RemotingCommand(RequestCode.BROKER_HEARTBEAT, header.encode())
        with contextlib.suppress(GoddardError):  # the next one follows
            await self._client.oneway(address, request)
