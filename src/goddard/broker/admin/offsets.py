"""Requests about how far groups have read: looking at it, moving it, copying it.

Handled: 208 and 317 progress of one group and of all, 303 times between which a group stands, 222
reset, 308 correction, 314 clone, 43 and 45 the tables of consumers and of delays. Belongs to the
loop; those that look at every queue let others have their turn in between.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Final

from goddard.broker.admin.clients import KNOWS_OFFSETS_VERSION
from goddard.broker.admin.topics import QUEUES_PER_TURN, UNSET_REMARK
from goddard.broker.consuming.clients import Clients
from goddard.broker.consuming.offsets import Offsets
from goddard.broker.settings import Settings
from goddard.broker.stats import Stats
from goddard.broker.tables.topics import Groups, Topics
from goddard.clock import Clock, SystemClock, format_local_time
from goddard.errors import GoddardError
from goddard.protocol.bodies import MessageQueue, TopicConfig, encode_body
from goddard.protocol.bodies_admin import (
    BrokerConsumeStats,
    ConsumeOffsets,
    ConsumerOffsetTable,
    ConsumeStats,
    ConsumeTimeSpans,
    CorrectionOffsets,
    DelayOffsetTable,
    QueueTimeSpan,
)
from goddard.protocol.bodies_client import QueueOffset, ResetOffsetBody, ResetOffsetList
from goddard.protocol.codes import LanguageCode, RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.admin import (
    CloneGroupOffsetRequest,
    GetBrokerConsumeStatsRequest,
    GetConsumeStatsRequest,
    QueryConsumeTimeSpanRequest,
    QueryCorrectionOffsetRequest,
    ResetOffsetRequest,
)
from goddard.protocol.responses import (
    ConsumerNotOnlineError,
    GroupNotExistError,
    InvalidParameterError,
    SystemFailedError,
    TopicNotExistError,
)
from goddard.store import tables
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

_log = logging.getLogger(__name__)

_MAX_INT64: Final = 2**63 - 1


class AdminOffsets:
    """The handlers of requests about progress."""

    def __init__(
        self,
        *,
        settings: Settings,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        offsets: Offsets,
        delays: tables.DelayOffsetTable,
        store: MessageStore,
        stats: Stats,
        executor: Executor | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._executor = executor
        self._delays = delays
        self._store = store
        self._stats = stats
        self._clock = clock or SystemClock()
        self._looked_at = 0

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_CONSUME_STATS: self.handle_progress,
            RequestCode.GET_BROKER_CONSUME_STATS: self.handle_all_progress,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.handle_time_span,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.handle_reset,
            RequestCode.QUERY_CORRECTION_OFFSET: self.handle_correction,
            RequestCode.CLONE_GROUP_OFFSET: self.handle_clone,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.handle_consumer_table,
            RequestCode.GET_ALL_DELAY_OFFSET: self.handle_delay_table,
        }

    # Looking

    async def handle_progress(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        header = GetConsumeStatsRequest.decode(request.fields)
        group = header.consumer_group
        wanted = [topic for topic in (header.topic_list or "").split(";") if topic.strip()]
        if not wanted:
            if header.topic and header.topic.strip():
                wanted = [header.topic]
            else:
                wanted = self._offsets.table.topics_of(group)
            wanted = self._subscribed(group, wanted)
        stats = ConsumeStats()
        for topic in dict.fromkeys(wanted):
            config = self._topics.get(topic)
            if config is None:
                _log.warning(
                    "AdminBrokerProcessor#getConsumeStats: topic config does not exist, topic=%s",
                    topic[:255],
                )
                continue
            await self._add_progress(stats, group, topic, config.read_queue_nums, with_pulled=True)
        return request.reply(body=encode_body(stats))

    async def handle_all_progress(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        is_order = GetBrokerConsumeStatsRequest.decode(request.fields).is_order
        answer = BrokerConsumeStats(broker_addr=self._settings.current.broker_address)
        topics_of: dict[str, list[str]] = {}
        for group, topic, _ in self._offsets.table.items():
            topics_of.setdefault(group, []).append(topic)
        for group in list(self._groups.configs):
            of_group: list[ConsumeStats] = []
            for topic in self._subscribed(group, topics_of.get(group, ())):
                config = self._topics.get(topic)
                if config is None or (is_order and not config.order):
                    continue
                stats = ConsumeStats()
                await self._add_progress(
                    stats, group, topic, config.write_queue_nums, with_pulled=False
                )
                for offsets in stats.offset_table.values():
                    answer.total_diff += offsets.broker_offset - offsets.consumer_offset
                    answer.total_inflight_diff += offsets.pull_offset - offsets.consumer_offset
                of_group.append(stats)
            answer.consume_stats_list.append({group: of_group})
            await self._take_turn()
        return request.reply(body=encode_body(answer))

    def _subscribed(self, group: str, topics: Iterable[str]) -> list[str]:
        """Of some topics those that the group still wants; all of them while it is not there."""
        online = self._clients.consumer_group(group)
        if online is None or not online.subscriptions:
            return list(topics)
        return [topic for topic in topics if topic in online.subscriptions]

    async def _add_progress(
        self, stats: ConsumeStats, group: str, topic: str, queues: int, *, with_pulled: bool
    ) -> None:
        broker_name = self._settings.current.broker_name
        for queue_id in range(queues):
            await self._take_turn()
            consumed = max(0, self._offsets.query(group, topic, queue_id))
            last_ms = (
                self._store.message_store_time(topic, queue_id, consumed - 1) if consumed else None
            )
            pulled = self._offsets.pulled(group, topic, queue_id) if with_pulled else 0
            stats.offset_table[MessageQueue(broker_name, queue_id, topic)] = ConsumeOffsets(
                broker_offset=self._store.max_offset(topic, queue_id),
                consumer_offset=consumed,
                pull_offset=max(consumed, pulled) if with_pulled else 0,
                last_timestamp=last_ms or 0,
            )
        stats.consume_tps += self._stats.get_rate(topic, group)

    async def _take_turn(self) -> None:
        self._looked_at += 1
        if self._looked_at % QUEUES_PER_TURN == 0:
            await asyncio.sleep(0)

    async def handle_time_span(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        header = QueryConsumeTimeSpanRequest.decode(request.fields)
        topic, group = header.topic, header.group
        config = self._known(topic, f"topic[{topic[:255]}] not exist")
        answer = ConsumeTimeSpans()
        for queue_id in range(config.write_queue_nums):
            await self._take_turn()
            end = self._store.max_offset(topic, queue_id)
            consumed = self._offsets.query(group, topic, queue_id)
            first_ms = self._store.earliest_store_time(topic, queue_id)
            min_ms = -1 if first_ms is None else first_ms
            consumed_ms = self._time_of(topic, queue_id, consumed - 1) if consumed > 0 else min_ms
            max_ms = self._time_of(topic, queue_id, end - 1)
            delay_ms = 0
            if consumed < end:
                delay_ms = self._clock.now_ms() - self._time_of(topic, queue_id, consumed)
            answer.consume_time_span_set.append(
                QueueTimeSpan(
                    message_queue=MessageQueue(self._settings.current.broker_name, queue_id, topic),
                    min_time_stamp=min_ms,
                    min_time_stamp_str=_time_text(min_ms),
                    max_time_stamp=max_ms,
                    max_time_stamp_str=_time_text(max_ms),
                    consume_time_stamp=consumed_ms,
                    consume_time_stamp_str=_time_text(consumed_ms),
                    delay_time=delay_ms,
                )
            )
        return request.reply(body=encode_body(answer))

    def _time_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When a message was stored; -1 when it is not there."""
        if queue_offset < 0:
            return -1
        time_ms = self._store.message_store_time(topic, queue_id, queue_offset)
        return -1 if time_ms is None else time_ms

    def _known(self, topic: str, problem: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is None:
            raise TopicNotExistError(problem)
        return config

    # Moving

    async def handle_reset(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        header = ResetOffsetRequest.decode(request.fields)
        _log.info(
            "[reset-offset] reset offset started by %s. topic=%s, group=%s, timestamp=%d, "
            "isForce=%s",
            connection.remote,
            header.topic[:255],
            header.group[:255],
            header.timestamp,
            header.is_force,
        )
        if self._settings.current.server_side_reset:
            return await self._reset_here(request, header)
        return await self._reset_at_clients(request, header)

    async def _reset_here(
        self, request: RemotingCommand, header: ResetOffsetRequest
    ) -> RemotingCommand:
        """Set new offsets; the group learns of them with its next pulls."""
        topic, group = header.topic, header.group
        config = self._known(topic, f"Topic {topic[:255]} does not exist")
        if group not in self._groups:
            raise GroupNotExistError(f"Group {group[:255]} does not exist")
        queue_id = -1 if header.queue_id is None else header.queue_id
        offsets: dict[int, int] = {}
        if queue_id < 0:
            for each in range(config.read_queue_nums):
                await self._take_turn()
                offsets[each] = self._offset_at(topic, each, header.timestamp)
        else:
            offsets[queue_id] = self._target(header, queue_id, config)
        if not offsets:
            raise SystemFailedError("No queues to reset.")
        broker_name = self._settings.current.broker_name
        body = ResetOffsetBody()
        for each, offset in offsets.items():
            self._offsets.reset(group, topic, each, offset)
            body.offset_table[MessageQueue(broker_name, each, topic)] = offset
        _log.info("Reset offset, topic=%s, group=%s, queues=%s", topic, group, offsets)
        return request.reply(body=encode_body(body))

    def _target(self, header: ResetOffsetRequest, queue_id: int, config: TopicConfig) -> int:
        topic, offset = header.topic, header.offset
        low = self._store.min_offset(topic, queue_id)
        high = self._store.max_offset(topic, queue_id)
        if not high and queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            # Else a peer could fill the table with queues that nobody has.
            raise InvalidParameterError(f"the topic {topic} has no queue {queue_id}")
        if offset is None or offset == -1:
            return self._offset_at(topic, queue_id, header.timestamp)
        if not low <= offset <= high + 1:
            raise SystemFailedError(
                f"Target offset {offset} not in consume queue range [{low}-{high}]"
            )
        return offset

    def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        if timestamp_ms < 0:
            return self._store.max_offset(topic, queue_id)
        return max(0, self._store.offset_by_time(topic, queue_id, timestamp_ms))

    async def _reset_at_clients(
        self, request: RemotingCommand, header: ResetOffsetRequest
    ) -> RemotingCommand:
        """Have the consumers that are online reset themselves, as all 4.x brokers do."""
        topic, name = header.topic, header.group
        config = self._known(
            topic, f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
        )
        table: dict[MessageQueue, int] = {}
        broker_name = self._settings.current.broker_name
        for queue_id in range(config.write_queue_nums):
            await self._take_turn()
            consumed = self._offsets.query(name, topic, queue_id)
            if consumed < 0:
                raise SystemFailedError(f"THe consumer group <{name[:255]}> not exist")
            offset = self._offset_at(topic, queue_id, header.timestamp)
            if not header.is_force:
                offset = min(offset, consumed)
            table[MessageQueue(broker_name, queue_id, topic)] = offset
        group = self._clients.consumer_group(name)
        if group is None:
            raise ConsumerNotOnlineError(
                f"Consumer not online, so can not reset offset, Group: {name} Topic: {topic} "
                f"Timestamp: {header.timestamp}"
            )
        push = ResetOffsetRequest(topic=topic, group=name, queue_id=-1, timestamp=header.timestamp)
        body = _reset_body(table, is_list=request.language == LanguageCode.CPP)
        for client in group.clients.values():
            if client.version < KNOWS_OFFSETS_VERSION:
                raise SystemFailedError(
                    f"the client does not support this feature. version={client.version}"
                )
            try:
                client.connection.oneway(
                    RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, push.encode(), body)
                )
            except GoddardError as error:
                _log.error(
                    "[reset-offset] reset offset exception. topic=%s, group=%s, error=%s",
                    topic,
                    name,
                    error,
                )
        return request.reply(
            remark=UNSET_REMARK, body=encode_body(ResetOffsetBody(offset_table=table))
        )

    async def handle_correction(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        """The least offset of all groups per queue; none where the compared group is behind it."""
        header = QueryCorrectionOffsetRequest.decode(request.fields)
        left_out = set((header.filter_groups or "").split(","))
        least: dict[int, int] = {}
        for group, topic, offsets in list(self._offsets.table.items()):
            await self._take_turn()
            if topic != header.topic or group in left_out:
                continue
            for queue_id, offset in offsets.items():
                if offset >= self._store.min_offset(topic, queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, _MAX_INT64))
        compared = self._offsets.table.offsets(header.compare_group, header.topic)
        for queue_id, offset in compared.items():
            if least.get(queue_id, _MAX_INT64) > offset:
                least[queue_id] = _MAX_INT64
        body = encode_body(CorrectionOffsets(correction_offsets=least), unquoted_int_keys=True)
        return request.reply(body=body)

    def handle_clone(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = CloneGroupOffsetRequest.decode(request.fields)
        if header.topic and header.topic.strip():
            wanted = [header.topic]
        else:
            wanted = self._offsets.table.topics_of(header.src_group)
        if not header.offline:
            wanted = self._subscribed(header.src_group, wanted)
        for topic in wanted:
            if topic in self._topics:
                self._offsets.clone(header.src_group, header.dest_group, topic)
            else:
                _log.warning("[cloneGroupOffset], topic config not exist, %s", topic[:255])
        return request.reply()

    # Tables, for slaves and tools

    async def handle_consumer_table(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        """The table may be large: it is copied in turns, and written by a thread."""
        topics_of: dict[str, list[str]] = {}
        table: dict[str, dict[int, int]] = {}
        data_version = self._offsets.table.data_version
        for number, (pair, offsets) in enumerate(self._offsets.table.by_pair().items(), 1):
            topic, _, group = pair.partition(tables.TOPIC_GROUP_SEPARATOR)
            topics_of.setdefault(group, []).append(topic)
            table[pair] = dict(offsets)
            if number % QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)
        body = ConsumerOffsetTable(
            data_version=data_version, group_topic_map=topics_of, offset_table=table
        )
        written = await asyncio.get_running_loop().run_in_executor(
            self._executor, partial(encode_body, body, unquoted_int_keys=True)
        )
        return request.reply(body=written)

    def handle_delay_table(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        body = DelayOffsetTable(
            data_version=self._delays.data_version, offset_table=dict(self._delays.offsets)
        )
        return request.reply(body=encode_body(body, unquoted_int_keys=True))


def _reset_body(table: dict[MessageQueue, int], *, is_list: bool) -> bytes:
    if not is_list:
        return encode_body(ResetOffsetBody(offset_table=table))
    offsets = [
        QueueOffset(
            broker_name=queue.broker_name,
            offset=offset,
            queue_id=queue.queue_id,
            topic=queue.topic,
        )
        for queue, offset in table.items()
    ]
    return encode_body(ResetOffsetList(offset_table=offsets))


def _time_text(time_ms: int) -> str:
    return f"{format_local_time('%Y-%m-%d#%H:%M:%S', time_ms)}:{time_ms % 1000:03d}"
