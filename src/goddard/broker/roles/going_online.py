"""What an isolated broker does before it goes online: its part of the acting-master mode.

A master tells each living slave where it is (906), waits until the slave follows, and takes over
the consumer and delay offsets that were reached there, unless its own are newer. It never goes back
in a queue. A slave asks its master where to follow it, and follows. RocketMQ's brokers do the same,
so either side can be one of them. Brokers that do not know 906 are passed over.

Belongs to the loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Final

from goddard.broker.roles.state_sync import SlaveState, ask_for_table
from goddard.broker.settings import Settings
from goddard.clock import Clock
from goddard.errors import GoddardError
from goddard.protocol.bodies import DataVersion
from goddard.protocol.bodies_admin import ConsumerOffsetTable, DelayOffsetTable
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.cluster import ExchangeHaInfoRequest, ExchangeHaInfoResponse
from goddard.protocol.responses import RequestNotSupportedError, check
from goddard.replication.acting import (
    Blocked,
    FollowFirst,
    GoOnline,
    TakeState,
    is_as_new,
    next_step,
)
from goddard.replication.master import SlaveStatus
from goddard.replication.reasons import Reasons
from goddard.store.store import MessageStore
from goddard.store.tables import TOPIC_GROUP_SEPARATOR
from goddard.transport.client import Client, split_address

_log = logging.getLogger(__name__)

_TIMEOUT_MS: Final = 3_000
# As long as RocketMQ waits for the HA connection.
_CONNECT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02
_CLOSE_SECONDS: Final = 0.5


class GoingOnline:
    """Takes one step after the other.

    ``slaves`` are those connected to this master; ``announce`` tells this slave of a master, by
    HA address and address.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        store: MessageStore,
        state: SlaveState,
        slaves: Callable[[], list[SlaveStatus]],
        announce: Callable[[str, str], None],
        is_following: Callable[[], bool],
        executor: Executor,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._store = store
        self._state = state
        self._slaves = slaves
        self._announce = announce
        self._is_following = is_following
        self._executor = executor
        self._clock = clock
        self._reasons = Reasons(clock)
        self._start_offset = store.log_max_offset
        self._client = Client(clock=clock)
        self._done: list[str] = []

    async def close(self) -> None:
        await self._client.close(_CLOSE_SECONDS)

    async def is_ready(self, members: Mapping[int, str] | None) -> bool:
        """Do what comes next; true when nothing is left. ``members``: None if nobody told."""
        config = self._settings.current
        if members is None:
            self._wait("no name server tells who else is in the group")
            return False
        step = next_step(config.broker_id, config.broker_address, members, self._done)
        match step:
            case GoOnline():
                return True
            case Blocked():
                self._wait(step.reason)
            case TakeState():
                await self._try(step.slave_address, self._take_state)
            case FollowFirst():
                await self._try(step.master_address, self._follow)
        return False

    def _wait(self, reason: str) -> None:
        if self._reasons.is_new("", reason):
            _log.warning("this broker is not online yet: %s", reason)

    async def _try(self, address: str, part: Callable[[str], Awaitable[None]]) -> None:
        try:
            await part(address)
        except RequestNotSupportedError:
            _log.info("%s knows no acting masters", address)
        except (GoddardError, TimeoutError) as error:
            self._wait(str(error))
            return
        self._done.append(address)

    # A master

    async def _take_state(self, address: str) -> None:
        config = self._settings.current
        await self._exchange(
            address,
            ExchangeHaInfoRequest(
                master_ha_address=config.ha_address,
                master_flush_offset=self._start_offset,
                master_address=config.broker_address,
            ),
        )
        is_level = await self._happens(lambda: self._has_level_slave(address))
        # One that is not level is copying what it lacks; one with another log is disconnected.
        if not (is_level or self._slaves_at(address)):
            raise TimeoutError(
                f"its slave {address} does not follow it; if that one has messages that this "
                "broker lost, make it the master: goddard broker promote"
            )
        ask = partial(ask_for_table, self._client, self._executor, address)
        offsets = await ask(RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetTable)
        delays = await ask(RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsetTable)
        self._take_offsets(address, offsets)
        version = delays.data_version or DataVersion()
        if is_as_new(version, self._state.delays.data_version):
            self._state.delays.raise_to(delays.offset_table, version)
            _log.info("took over the delay offsets of %s", address)

    def _take_offsets(self, address: str, offsets: ConsumerOffsetTable) -> None:
        table = self._state.offsets.table
        version = offsets.data_version or DataVersion()
        if not is_as_new(version, table.data_version):
            return
        known = {
            pair: of_pair
            for pair, of_pair in offsets.offset_table.items()
            if pair.partition(TOPIC_GROUP_SEPARATOR)[0] in self._state.topics
        }
        table.raise_to(known, version)
        _log.info("took over the consumer offsets of %s", address)

    def _slaves_at(self, address: str) -> list[SlaveStatus]:
        """Those connected from the host of an address; they connect from other ports."""
        host = split_address(address)[0]
        return [slave for slave in self._slaves() if split_address(slave.address)[0] == host]

    def _has_level_slave(self, address: str) -> bool:
        """Whether one more slave of that host has the whole log, which does not grow meanwhile."""
        host, end_offset = split_address(address)[0], self._store.log_max_offset
        level = sum(each.acknowledged_offset == end_offset for each in self._slaves_at(address))
        return level > sum(split_address(each)[0] == host for each in self._done)

    # A slave

    async def _follow(self, address: str) -> None:
        answer = await self._exchange(address, ExchangeHaInfoRequest())
        found = ExchangeHaInfoResponse.decode(answer.fields)
        if not found.master_ha_address:
            return
        self._announce(found.master_ha_address, found.master_address or address)
        if not await self._happens(self._is_following):
            raise TimeoutError(f"it does not follow its master {address} yet")

    # Both

    async def _happens(self, condition: Callable[[], bool]) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CONNECT_SECONDS
        while not condition():
            if loop.time() > deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    async def _exchange(self, address: str, header: ExchangeHaInfoRequest) -> RemotingCommand:
        request = RemotingCommand(RequestCode.EXCHANGE_BROKER_HA_INFO, header.encode())
        return check(await self._client.request(address, request, _TIMEOUT_MS), address)
