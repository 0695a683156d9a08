"""What a slave copies from its master besides the log: topics, groups, offsets, delay offsets.

It asks with RocketMQ's requests (21, 201, 43, 45): at once when it begins to follow, when messages
of a new queue arrive, and every 10 seconds. Only a slave that follows does: a master that lost its
store must not delete the topics of its slaves. Each table becomes what the master has, in one step,
so deletions arrive, too.

Offsets count only when the slave has the log to which they belong: otherwise a slave that becomes
the master would skip messages that it does not have yet. Offsets that consumers committed here,
while they could not reach the master, are sent to the master if it does not have higher ones. They
are kept in memory only: after a restart of the slave, those messages are delivered again.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, NamedTuple, TypeVar

from goddard.broker.consuming.offsets import Offsets
from goddard.broker.roles.master_search import MasterSearch
from goddard.broker.tables.topics import Groups, Topics
from goddard.clock import Clock
from goddard.errors import GoddardError
from goddard.protocol.bodies import Body, TopicConfigTable, decode_body
from goddard.protocol.bodies_admin import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
)
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.admin import GetGroupConfigRequest
from goddard.protocol.headers.header import Header
from goddard.protocol.headers.message import UpdateConsumerOffsetRequest
from goddard.protocol.responses import GroupNotExistError, ResponseError, check
from goddard.replication.reasons import Reasons
from goddard.store import tables
from goddard.store.store import MessageStore
from goddard.transport.client import Client

_logger = logging.getLogger(__name__)

_INTERVAL_SECONDS: Final = 10.0
# Between two rounds, whatever arrives.
_LEAST_SECONDS: Final = 0.1
# Until the log that belongs to the offsets has arrived.
_LOG_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.02
_TIMEOUT_MS: Final = 5_000
_MAX_BODY_BYTES: Final = 16 << 20
_RETURNED_AT_ONCE: Final = 100

_Body = TypeVar("_Body", bound=Body)


class SlaveState(NamedTuple):
    """What a slave has of its master besides the log."""

    topics: Topics
    groups: Groups
    offsets: Offsets
    delays: tables.DelayOffsetTable


async def ask_for_table(
    client: Client, executor: Executor, address: str, code: int, kind: type[_Body]
) -> _Body:
    """The table of another broker that a request of this code is answered with."""
    answer = check(await client.request(address, RemotingCommand(code), _TIMEOUT_MS), address)
    decode = partial(decode_body, answer.body, kind, max_dialect_bytes=_MAX_BODY_BYTES)
    return await asyncio.get_running_loop().run_in_executor(executor, decode)


class StateSync:
    """Runs from ``start`` to ``stop``; ``sync_now`` does not wait for the next round."""

    def __init__(
        self,
        *,
        client: Client,
        search: MasterSearch,
        is_following: Callable[[], bool],
        store: MessageStore,
        state: SlaveState,
        executor: Executor,
        clock: Clock,
    ) -> None:
        self._client = client
        self._search = search
        self._is_following = is_following
        self._store = store
        self._topics, self._groups, self._offsets, self._delays = state
        self._executor = executor
        self._reasons = Reasons(clock)
        self._is_wanted = asyncio.Event()
        self._queue_count = 0
        self._forget_listener: Callable[[], None] = lambda: None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._queue_count = len(self._store.queues.by_key)
        self._forget_listener = self._store.add_listener(self._arrived)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="state sync")

    async def stop(self) -> None:
        self._forget_listener()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def sync_now(self) -> None:
        self._is_wanted.set()

    def _arrived(self, _: object) -> None:
        """The topic of a new queue may be new, too."""
        count = len(self._store.queues.by_key)
        if count != self._queue_count:
            self._queue_count = count
            self.sync_now()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_INTERVAL_SECONDS):
                    await self._is_wanted.wait()
            except TimeoutError:
                pass
            self._is_wanted.clear()
            address = self._search.address
            # A master that is not online yet takes over what is here.
            if not (address and self._search.is_master_online and self._is_following()):
                continue
            try:
                await self._sync(address)
            except GoddardError as error:
                if self._reasons.is_new(address, str(error)):
                    _logger.warning("the state of the master %s was not copied: %s", address, error)
            except Exception:
                _logger.exception("copying the state of the master %s failed once", address)
            else:
                self._reasons.forget()
            await asyncio.sleep(_LEAST_SECONDS)

    async def _sync(self, address: str) -> None:
        await self._copy_configs(address, self._is_following)
        offsets, delays = await self._ask_for_offsets(address)
        # Asked for after the offsets, so this is a log that has everything they stand for.
        log = await self._search.log_range(address)
        table = {pair: dict(of_pair) for pair, of_pair in offsets.offset_table.items()}
        await self._return_offsets(address, table)
        if await self._has_log(log.end_offset) and self._is_following():
            self._offsets.copy(table, offsets.data_version)
            self._delays.copy(delays.offset_table, delays.data_version)

    async def copy_last(self, address: str) -> None:
        """Copy from a master that is a slave now and has no more log than this broker."""
        await self._copy_configs(address, lambda: True)
        offsets, delays = await self._ask_for_offsets(address)
        self._offsets.copy(offsets.offset_table, offsets.data_version)
        self._delays.copy(delays.offset_table, delays.data_version)

    async def _copy_configs(self, address: str, is_wanted: Callable[[], bool]) -> None:
        topics = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigTable)
        if is_wanted() and topics.data_version != self._topics.data_version:
            self._topics.copy(topics.topic_config_table, topics.data_version)
        groups = await self._ask(
            address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupTable
        )
        if is_wanted() and groups.data_version != self._groups.data_version:
            self._groups.copy(
                groups.subscription_group_table, groups.forbidden_table, groups.data_version
            )

    async def _ask_for_offsets(self, address: str) -> tuple[ConsumerOffsetTable, DelayOffsetTable]:
        return (
            await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetTable),
            await self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsetTable),
        )

    async def _ask(self, address: str, code: int, kind: type[_Body]) -> _Body:
        return await ask_for_table(self._client, self._executor, address, code, kind)

    async def _has_log(self, end_offset: int) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LOG_SECONDS
        while self._store.log_max_offset < end_offset or self._store.is_dispatch_behind:
            if loop.time() > deadline or not self._is_following():
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    async def _return_offsets(self, address: str, table: dict[str, dict[int, int]]) -> None:
        """Send the master what was committed here, where it has less, and note it in its table."""
        higher = []
        for key, offset in list(self._offsets.unsent.items()):
            group, topic, queue_id = key
            if offset > table.get(tables.pair_key(topic, group), {}).get(queue_id, -1):
                higher.append((key, offset))
            else:
                del self._offsets.unsent[key]
        for start in range(0, len(higher), _RETURNED_AT_ONCE):
            part = higher[start : start + _RETURNED_AT_ONCE]
            taken = await asyncio.gather(*(self._return_offset(address, *each) for each in part))
            for (key, offset), is_taken in zip(part, taken, strict=True):
                if self._offsets.unsent.get(key) == offset:
                    del self._offsets.unsent[key]
                if is_taken:
                    group, topic, queue_id = key
                    table.setdefault(tables.pair_key(topic, group), {})[queue_id] = offset

    async def _return_offset(self, address: str, key: tuple[str, str, int], offset: int) -> bool:
        group, topic, queue_id = key
        header = UpdateConsumerOffsetRequest(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        try:
            try:
                await self._request(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
            except GroupNotExistError:
                # A group that began while the master was away: it is created by this question.
                question = GetGroupConfigRequest(group=group)
                await self._request(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, question)
                await self._request(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        except ResponseError as error:
            _logger.warning(
                "the master did not take the offset %d of group %s for queue %d of %s: %s",
                offset,
                group,
                queue_id,
                topic,
                error,
            )
            return False
        return True

    async def _request(self, address: str, code: int, header: Header) -> None:
        request = RemotingCommand(code, header.encode())
        check(await self._client.request(address, request, _TIMEOUT_MS), address)
