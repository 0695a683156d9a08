"""The role of a broker: what runs as long as it is a master, and what as long as it is a slave.

A master serves the HA port, delivers delayed messages and checks transactions. A slave does none of
that; it copies the log of its master. ``promote`` and ``demote`` change the role while the broker
runs; they refuse if messages that were acknowledged could be lost, unless they are forced. Nobody
but an operator calls them yet. Belongs to the loop.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple, Protocol

from goddard.broker.consuming.offsets import Offsets
from goddard.broker.registration import Registration
from goddard.broker.roles.master_search import MasterSearch
from goddard.broker.roles.state_sync import StateSync
from goddard.broker.settings import BrokerConfig, Settings
from goddard.broker.tables.topics import Groups, Topics
from goddard.environment import Environment
from goddard.errors import GoddardError
from goddard.replication.acknowledgements import Acknowledgements
from goddard.replication.decisions import SlaveLimits
from goddard.replication.following import BrokerIdentity, FollowLimits
from goddard.replication.master import HaServer, SlaveStatus
from goddard.replication.promotion import Replica, promotion_problem
from goddard.replication.slave import Follower, FollowStatus
from goddard.store.store import MessageStore
from goddard.store.tables import DelayOffsetTable
from goddard.transport.client import Client

_log = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 0.5
# How long a master that is demoted waits for a slave to have its whole log.
_LEVEL_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.01


class RoleRefusedError(GoddardError):
    """The role was not changed; the text says why and what to do."""


class Service(Protocol):
    """What only a master runs."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


class SlaveState(NamedTuple):
    """What a slave copies besides the log."""

    topics: Topics
    groups: Groups
    offsets: Offsets
    delays: DelayOffsetTable


class Roles:
    """Runs the duties of the broker's role from ``start`` to ``stop``."""

    def __init__(
        self,
        *,
        store: MessageStore,
        settings: Settings,
        registration: Registration,
        master_services: tuple[Service, ...],
        slave_state: SlaveState,
        acknowledgements: Acknowledgements,
        drain: Callable[[], Awaitable[None]],
        restore_topics: Callable[[], None],
        executor: Executor,
        readers: Executor,
        environment: Environment,
    ) -> None:
        self._store = store
        self._settings = settings
        self._registration = registration
        self._master_services = master_services
        self._slave_state = slave_state
        self._acknowledgements = acknowledgements
        self._drain = drain
        self._restore_topics = restore_topics
        self._changing = asyncio.Lock()
        self._search: MasterSearch | None = None
        # What an administrator told this slave of its master (908); nothing depends on it.
        self.master_flush_offset = 0
        self._executor = executor
        self._readers = readers
        self._clock = environment.clock
        self._random = environment.random
        self._ha_server: HaServer | None = None
        self._follower: Follower | None = None
        self._state_sync: StateSync | None = None
        self._client: Client | None = None

    async def start(self) -> None:
        config = self._settings.current
        if config.is_slave:
            self._start_slave(config)
        else:
            await self._start_master(config)

    async def stop(self) -> None:
        async with self._changing:
            await self._stop_slave(is_end=True)
            for service in self._master_services:
                await service.stop()
            await self._stop_ha_server()

    # Changing the role

    async def promote(self, role: str | None = None, *, force: bool = False) -> None:
        """Become the master of the group; RoleRefusedError if that is not safe."""
        async with self._changing:
            search = self._search
            if search is None:
                raise RoleRefusedError("this broker is the master already")
            others = await search.find_others()
            for other in others:
                if not other.is_slave:
                    raise RoleRefusedError(
                        f"{other.address} is the master of this group and answers: demote it first"
                    )
            if not force:
                problem = promotion_problem(self._store.log_max_offset, others, search.last)
                if problem is not None:
                    raise RoleRefusedError(f"messages could be lost: {problem}")
            role = role or search.properties.get("brokerRole", "ASYNC_MASTER")
            if role not in ("ASYNC_MASTER", "SYNC_MASTER"):
                raise RoleRefusedError(f"{role[:80]} is not the role of a master")
            await self._copy_last_state(search, others)
            await self._stop_slave()
            self._restore_topics()
            await self._settings.change_role(role, 0)
            await self._start_master(self._settings.current)
            await self._registration.settled()
            _log.warning(
                "this broker is the master of %s now, as %s; its log ends at %d%s",
                self._settings.current.broker_name,
                role,
                self._store.log_max_offset,
                " (forced)" if force else "",
            )

    async def demote(self, broker_id: int, *, force: bool = False) -> None:
        """Become a slave; RoleRefusedError if no slave has the whole log."""
        async with self._changing:
            before = self._settings.current
            if before.is_slave:
                raise RoleRefusedError("this broker is a slave already")
            if broker_id < 1:
                raise RoleRefusedError("the id of a slave is 1 or more")
            # From now on the gate refuses writes; what was accepted is completed.
            self._settings.replace(
                dataclasses.replace(before, broker_role="SLAVE", broker_id=broker_id)
            )
            for service in self._master_services:
                await service.stop()
            await self._drain()
            if not (force or await self._has_level_slave()):
                self._settings.replace(before)
                for service in self._master_services:
                    service.start()
                raise RoleRefusedError(
                    "messages could be lost: no slave has the log up to its end at "
                    f"{self._store.log_max_offset}"
                )
            await self._stop_ha_server()
            self._acknowledgements.restart()
            await self._settings.change_role("SLAVE", broker_id)
            self._start_slave(self._settings.current)
            await self._registration.settled()
            _log.warning(
                "this broker is a slave of %s now, with the id %d; its log ends at %d%s",
                before.broker_name,
                broker_id,
                self._store.log_max_offset,
                " (forced)" if force else "",
            )

    async def _copy_last_state(self, search: MasterSearch, others: Sequence[Replica]) -> None:
        """If the last master is a slave now: what it changed since the last round."""
        last, state_sync = search.last, self._state_sync
        for other in others:
            if last is None or state_sync is None or other.address != last.address:
                continue
            if other.end_offset is not None and other.end_offset <= self._store.log_max_offset:
                try:
                    await state_sync.copy_last(other.address)
                except GoddardError as error:
                    _log.warning("the last state of %s was not copied: %s", other.address, error)

    async def _has_level_slave(self) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LEVEL_SECONDS
        end_offset = self._store.log_max_offset
        while max(self.acknowledged_offsets, default=-1) < end_offset:
            if not self.acknowledged_offsets or loop.time() > deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    async def _stop_slave(self, *, is_end: bool = False) -> None:
        self._search = None
        state_sync, self._state_sync = self._state_sync, None
        if state_sync is not None:
            await state_sync.stop()
        follower, self._follower = self._follower, None
        if follower is not None:
            await follower.stop(can_be_behind=is_end)
        client, self._client = self._client, None
        if client is not None:
            await client.close(_CLOSE_SECONDS)

    async def _stop_ha_server(self) -> None:
        ha_server, self._ha_server = self._ha_server, None
        if ha_server is not None:
            await ha_server.stop()

    @property
    def slaves(self) -> list[SlaveStatus]:
        """The slaves that are connected to this master."""
        return [] if self._ha_server is None else self._ha_server.slaves

    @property
    def acknowledged_offsets(self) -> list[int]:
        """What each of them has acknowledged."""
        return [] if self._ha_server is None else self._ha_server.acknowledged_offsets

    @property
    def follow_status(self) -> FollowStatus | None:
        """How this slave is doing; None for a master."""
        return None if self._follower is None else self._follower.status

    async def _start_master(self, config: BrokerConfig) -> None:
        self._ha_server = HaServer(
            self._store,
            self._readers,
            limits=lambda: _slave_limits(self._settings.current),
            clock=self._clock,
            on_report=self._acknowledgements.reported,
        )
        await self._ha_server.start(config.bind_address, config.ha_port)
        for service in self._master_services:
            service.start()

    def _start_slave(self, config: BrokerConfig) -> None:
        self._client = Client(clock=self._clock)
        search = MasterSearch(self._settings, self._client, self._registration.find_master)
        self._search = search
        self._follower = Follower(
            self._store,
            self._executor,
            identity=BrokerIdentity(
                config.cluster_name, config.broker_name, self._store.config.segment_bytes
            ),
            find_master=search.find,
            limits=lambda: _follow_limits(self._settings.current),
            clock=self._clock,
            random=self._random.random,
            on_level=self.sync_now,
        )
        state = self._slave_state
        self._state_sync = StateSync(
            client=self._client,
            search=search,
            is_following=self._is_following,
            store=self._store,
            topics=state.topics,
            groups=state.groups,
            offsets=state.offsets,
            delays=state.delays,
            executor=self._executor,
            clock=self._clock,
        )
        self._registration.on_master_changed = self._follower.try_now
        self._state_sync.start()
        self._follower.start()

    def sync_now(self) -> None:
        """Have a slave copy the state of its master without waiting for the next round."""
        if self._state_sync is not None:
            self._state_sync.sync_now()

    def _is_following(self) -> bool:
        return self._follower is not None and self._follower.status.is_following


def _slave_limits(config: BrokerConfig) -> SlaveLimits:
    return SlaveLimits(
        batch_bytes=config.ha_batch_bytes,
        heartbeat_ms=config.ha_heartbeat_ms,
        silence_ms=config.ha_silence_ms,
        bytes_per_second=config.ha_bytes_per_second if config.ha_flow_control else None,
    )


def _follow_limits(config: BrokerConfig) -> FollowLimits:
    return FollowLimits(
        report_ms=config.ha_heartbeat_ms,
        silence_ms=config.ha_silence_ms,
        is_last_segment_enough=config.sync_from_last_file,
    )
