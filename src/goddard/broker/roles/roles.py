"""The role of a broker: what runs as long as it is a master, and what as long as it is a slave.

A master serves the HA port, delivers delayed messages and checks transactions. A slave does none of
that; it copies the log of its master. ``promote`` and ``demote`` change the role while the broker
runs; they refuse if messages that were acknowledged could be lost, unless they are forced. Nobody
but an operator calls them yet.

With ``enableSlaveActingMaster`` the slave with the smallest id acts for a master that is away: it
delivers delayed messages and halves to other brokers, if ``enableRemoteEscape`` allows that, and
locks queues. With ``totalReplicas`` of 2 or more a broker starts isolated: it registers, takes
messages and delivers only after ``going_online`` has done its part. Belongs to the loop.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Final, Protocol

from goddard.broker.gate import BrokerGate
from goddard.broker.registration import Registration
from goddard.broker.roles.going_online import GoingOnline
from goddard.broker.roles.master_search import MasterSearch
from goddard.broker.roles.membership import Membership
from goddard.broker.roles.state_sync import SlaveState, StateSync
from goddard.broker.sending.escape import Escape
from goddard.broker.settings import BrokerConfig, Settings
from goddard.environment import Environment
from goddard.errors import GoddardError
from goddard.replication.acknowledgements import Acknowledgements
from goddard.replication.acting import MASTER_ID, Standing
from goddard.replication.decisions import SlaveLimits
from goddard.replication.following import BrokerIdentity, FollowLimits
from goddard.replication.master import HaServer, SlaveStatus
from goddard.replication.promotion import Replica, promotion_problem
from goddard.replication.slave import Follower, FollowStatus
from goddard.store.store import MessageStore
from goddard.transport.client import Client

_log = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 0.5
# How long a master that is demoted waits for a slave to have its whole log.
_LEVEL_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.01
# How long a start waits until the broker is online.
_ONLINE_SECONDS: Final = 3.0
# How long a slave leaves a master time to go online, before it acts for it again.
_ANNOUNCED_MS: Final = 15_000


class RoleRefusedError(GoddardError):
    """The role was not changed; the text says why and what to do."""


class Service(Protocol):
    """What a master runs, or with ``escape`` a slave that acts for it."""

    def start(self, escape: Escape | None = None) -> None: ...

    async def stop(self) -> None: ...


class Roles:
    """Runs the duties of the broker's role from ``start`` to ``stop``."""

    def __init__(
        self,
        *,
        store: MessageStore,
        settings: Settings,
        registration: Registration,
        gate: BrokerGate,
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
        self._gate = gate
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
        self._escape = Escape(settings, environment.clock)
        self._standing = Standing()
        self._going_online: GoingOnline | None = None
        self._is_online = asyncio.Event()
        self._membership: Membership | None = None

    async def start(self) -> None:
        """Register, or begin to go online, for which this waits a little."""
        config = self._settings.current
        self._gate.is_isolated = config.starts_isolated
        if config.is_slave:
            self._start_slave(config)
        else:
            await self._start_ha_server(config)
        if not config.starts_isolated:
            await self._go_online()
        if config.enable_slave_acting_master:
            if config.starts_isolated:
                self._going_online = self._plan_going_online()
            self._membership = Membership(
                self._settings,
                self._clock,
                is_registered=lambda: self._registration.is_started,
                on_round=self._heard,
            )
            self._membership.start()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ONLINE_SECONDS):
                    await self._is_online.wait()

    async def stop(self) -> None:
        async with self._changing:
            membership, self._membership = self._membership, None
            if membership is not None:
                await membership.stop()
            if self._going_online is not None:
                await self._going_online.close()
            await self._escape.close()
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
            await self._set_acting(acts=False)
            await self._stop_slave()
            self._restore_topics()
            await self._settings.change_role(role, MASTER_ID)
            await self._start_ha_server(self._settings.current)
            await self._go_online()
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
                if self._is_online.is_set():
                    self._start_services()
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

    # Acting for the master, and going online

    async def min_id_changed(self) -> None:
        """A name server says that the smallest id of the group changed (905)."""
        self._standing.notified()
        await self._update_acting()
        if self._membership is not None:
            self._membership.ask_now()

    async def master_announced(self, ha_address: str, address: str) -> None:
        """A master that goes online says where to follow it (906). This slave does not act now."""
        async with self._changing:
            self._standing.suspend(self._clock.monotonic_ms() + _ANNOUNCED_MS)
            await self._set_acting(acts=False)
            self._announce(ha_address, address)

    @property
    def is_acting(self) -> bool:
        """Whether this slave acts for its master."""
        return self._gate.is_acting

    @property
    def is_active(self) -> bool:
        """Whether this broker is the master of its group, or acts for it."""
        is_master = self._is_online.is_set() and not self._settings.current.is_slave
        return is_master or self.is_acting

    def _announce(self, ha_address: str, address: str) -> None:
        if self._search is not None and self._follower is not None:
            self._search.announce(ha_address, address)
            self._follower.try_now()

    def _master_changed(self) -> None:
        self._confirm_master(self._registration.master[1])
        if self._follower is not None:
            self._follower.try_now()

    def _confirm_master(self, address: str) -> None:
        if self._search is not None and self._search.confirm(address):
            self.sync_now()

    async def _heard(self, members: dict[int, str] | None) -> None:
        if members is not None:
            lease_ms = self._settings.current.broker_not_active_timeout_ms
            self._standing.heard(members, self._clock.monotonic_ms() + lease_ms)
            self._confirm_master(members.get(MASTER_ID, ""))
        going_online = self._going_online
        if going_online is None or self._is_online.is_set():
            await self._update_acting()
        elif await going_online.is_ready(members):
            async with self._changing:
                await self._go_online()

    async def _update_acting(self) -> None:
        config = self._settings.current
        acts = (
            config.is_slave
            and self._is_online.is_set()
            and self._standing.acts(config.broker_id, self._clock.monotonic_ms())
        )
        if acts != self.is_acting and not self._changing.locked():
            async with self._changing:
                await self._set_acting(acts=acts)

    async def _set_acting(self, *, acts: bool) -> None:
        if acts == self.is_acting:
            return
        self._gate.is_acting = acts
        config = self._settings.current
        if not acts:
            for service in self._master_services:
                await service.stop()
            await self._escape.close()
            _log.warning("this broker does not act for the master any more")
            return
        _log.warning(
            "the master of %s is away, and this broker, %d, acts for it; delayed messages and "
            "transactions %s",
            config.broker_name,
            config.broker_id,
            "go to other brokers" if config.remote_escape else "wait (enableRemoteEscape=false)",
        )
        if config.remote_escape:
            for service in self._master_services:
                service.start(self._escape)

    def _plan_going_online(self) -> GoingOnline:
        return GoingOnline(
            settings=self._settings,
            store=self._store,
            state=self._slave_state,
            slaves=lambda: self.slaves,
            announce=self._announce,
            is_following=self._is_following,
            executor=self._executor,
            clock=self._clock,
        )

    async def _go_online(self) -> None:
        """Do the duties of the role that others see, and register."""
        is_isolated, self._gate.is_isolated = self._gate.is_isolated, False
        if not self._settings.current.is_slave:
            self._start_services()
        await self._registration.start()
        self._is_online.set()
        if is_isolated:
            _log.info("this broker is online")

    def _start_services(self) -> None:
        for service in self._master_services:
            service.start()

    async def _find_master(self) -> tuple[str, str]:
        """Of an isolated broker only who announces itself is known."""
        return await self._registration.find_master() if self._is_online.is_set() else ("", "")

    async def _start_ha_server(self, config: BrokerConfig) -> None:
        self._ha_server = HaServer(
            self._store,
            self._readers,
            limits=lambda: _slave_limits(self._settings.current),
            clock=self._clock,
            on_report=self._acknowledgements.reported,
        )
        await self._ha_server.start(config.bind_address, config.ha_port)

    def _start_slave(self, config: BrokerConfig) -> None:
        self._client = Client(clock=self._clock)
        search = MasterSearch(self._settings, self._client, self._find_master)
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
        self._state_sync = StateSync(
            client=self._client,
            search=search,
            is_following=self._is_following,
            store=self._store,
            state=self._slave_state,
            executor=self._executor,
            clock=self._clock,
        )
        self._registration.on_master_changed = self._master_changed
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
