"""Requests that create, change, delete and describe topics.

Handled: 17 and 18 create or change, 215 delete, 21 and 351 configurations, 202 offsets and rates,
305 the broker's own topics. Belongs to the loop; files of deleted topics go in the executor.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from typing import Final

import msgspec

from goddard.broker.consuming.offsets import Offsets
from goddard.broker.settings import Settings
from goddard.broker.stats import Stats
from goddard.broker.tables.attributes import (
    MESSAGE_TYPE,
    MIXED,
    TOPIC_ATTRIBUTES,
    AttributeProblemError,
    altered,
    parse_changes,
)
from goddard.broker.tables.topics import Topics
from goddard.errors import ProtocolError
from goddard.protocol import names
from goddard.protocol.bodies import (
    DataVersion,
    MessageQueue,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    decode_body,
    encode_body,
)
from goddard.protocol.bodies_admin import (
    TopicConfigAndMapping,
    TopicConfigList,
    TopicOffset,
    TopicStatsTable,
)
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.admin import (
    CreateTopicRequest,
    DeleteTopicRequest,
    GetAllTopicConfigRequest,
    GetAllTopicConfigResponse,
    GetTopicConfigRequest,
    GetTopicStatsRequest,
)
from goddard.protocol.responses import (
    InvalidParameterError,
    SystemFailedError,
    TopicNotExistError,
)
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

_log = logging.getLogger(__name__)

# What RocketMQ leaves in some answers that say success; clients must never read it as a failure.
UNSET_REMARK: Final = "not set any response code"
MAX_QUEUES: Final = 65_535
_MAX_PERM: Final = 15
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
# After this many queues, other requests get their turn.
QUEUES_PER_TURN: Final = 256


class AdminTopics:
    """The handlers of requests about topics."""

    def __init__(
        self,
        *,
        settings: Settings,
        topics: Topics,
        offsets: Offsets,
        store: MessageStore,
        stats: Stats,
        executor: Executor | None = None,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._offsets = offsets
        self._store = store
        self._stats = stats
        self._executor = executor

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.handle_create,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.handle_create_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.handle_delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.handle_configs,
            RequestCode.GET_TOPIC_CONFIG: self.handle_config,
            RequestCode.GET_TOPIC_STATS_INFO: self.handle_stats,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.handle_system_topics,
        }

    # Changing

    def handle_create(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = CreateTopicRequest.decode(request.fields)
        _log.info(
            "Broker receive request to update or create topic=%s, caller address=%s",
            header.topic[:255],
            connection.remote,
        )
        wanted = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
        )
        try:
            changes = parse_changes(header.attributes)
        except AttributeProblemError as error:
            raise SystemFailedError(str(error)) from error
        self._put([self._checked(wanted, changes)])
        return request.reply(remark=UNSET_REMARK)

    def handle_create_list(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        wanted = decode_body(request.body, TopicConfigList).topic_config_list
        _log.info(
            "Broker receive request to update or create %d topics, caller address=%s",
            len(wanted),
            connection.remote,
        )
        # All are checked before the first is changed.
        self._put([self._checked(each, each.attributes) for each in wanted])
        return request.reply(remark=UNSET_REMARK)

    def _checked(self, wanted: TopicConfig, changes: Mapping[str, str]) -> TopicConfig:
        """The topic as it is to be; its attributes are the old ones with the changes made."""
        problem = names.topic_problem(wanted.topic_name)
        if problem is not None:
            raise InvalidParameterError(problem[:1000])
        self._check_not_system(wanted.topic_name)
        if wanted.topic_filter_type not in _FILTER_TYPES:
            raise SystemFailedError(
                f"topicFilterType = [{wanted.topic_filter_type[:80]}] value invalid"
            )
        for count in (wanted.read_queue_nums, wanted.write_queue_nums):
            if not 0 <= count <= MAX_QUEUES:
                raise InvalidParameterError(f"a topic has 0 to {MAX_QUEUES} queues, not {count}")
        if not 0 <= wanted.perm <= _MAX_PERM:
            raise InvalidParameterError(f"the perm {wanted.perm} is not 0 to {_MAX_PERM}")
        is_mixed_enabled = (
            self._settings.current.unused_properties.get("enableMixedMessageType") == "true"
        )
        if changes.get(f"+{MESSAGE_TYPE}") == MIXED and not is_mixed_enabled:
            raise InvalidParameterError("MIXED message type is not supported.")
        existing = self._topics.get(wanted.topic_name)
        try:
            attributes = altered(
                None if existing is None else existing.attributes, changes, TOPIC_ATTRIBUTES
            )
        except AttributeProblemError as error:
            raise SystemFailedError(str(error)) from error
        return msgspec.structs.replace(wanted, attributes=attributes)

    def _check_not_system(self, topic: str) -> None:
        if self._settings.current.validate_system_topic and self._topics.is_system(topic):
            raise InvalidParameterError(f"The topic[{topic}] is conflict with system topic.")

    def _put(self, wanted: Iterable[TopicConfig]) -> None:
        # Asking for what is there already must not make every name server and slave think again.
        self._topics.put_all(each for each in wanted if each != self._topics.get(each.topic_name))

    async def handle_delete(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        topic = DeleteTopicRequest.decode(request.fields).topic
        _log.info(
            "AdminBrokerProcessor#deleteTopic: broker receive request to delete topic=%s, "
            "caller=%s",
            topic[:255],
            connection.remote,
        )
        if not topic.strip():
            raise InvalidParameterError("The specified topic is blank.")
        self._check_not_system(topic)
        await self.delete(topic)
        return request.reply()

    async def delete(self, topic: str) -> None:
        """Delete a topic with its progress and queues; its messages leave with the log."""
        doomed = [topic]
        if self._settings.current.clear_retry_topic_with_topic:
            for group in self._offsets.table.groups_of(topic):
                for is_v2 in (True, False):
                    retry = names.pop_retry_topic(group, topic, is_v2=is_v2)
                    if retry in self._topics:
                        doomed.append(retry)
        loop = asyncio.get_running_loop()
        for each in doomed:
            self._topics.delete(each)
            self._offsets.remove(topic=each)
            self._stats.forget(topic=each)
            await loop.run_in_executor(self._executor, self._store.delete_topic, each)

    # Describing

    def handle_configs(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = GetAllTopicConfigRequest.decode(request.fields)
        version = self._topics.data_version
        page = page_of(
            self._topics.configs,
            self._settings,
            first=header.topic_seq,
            most=header.max_topic_num,
            is_same=None if header.data_version is None else same(header.data_version, version),
        )
        body = TopicConfigTable(
            data_version=version,
            topic_config_table={name: self._topics.configs[name] for name in page},
        )
        answer = GetAllTopicConfigResponse(total_topic_num=len(self._topics))
        return request.reply(ext_fields=answer.encode(), body=encode_body(body))

    def handle_config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        topic = GetTopicConfigRequest.decode(request.fields).topic
        config = self._topics.get(topic)
        if config is None:
            raise TopicNotExistError(f"No topic in this broker. topic: {topic[:255]}")
        body = TopicConfigAndMapping(**msgspec.structs.asdict(config))
        return request.reply(body=encode_body(body))

    async def handle_stats(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        topic = GetTopicStatsRequest.decode(request.fields).topic
        config = self._topics.get(topic)
        if config is None:
            raise TopicNotExistError(f"topic[{topic[:255]}] not exist")
        broker_name = self._settings.current.broker_name
        table = TopicStatsTable(topic_put_tps=self._stats.put_rate(topic))
        for queue_id in range(max(config.write_queue_nums, config.read_queue_nums)):
            if queue_id % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await asyncio.sleep(0)
            end = self._store.max_offset(topic, queue_id)
            last_ms = self._store.message_store_time(topic, queue_id, end - 1) if end > 0 else 0
            table.offset_table[MessageQueue(broker_name, queue_id, topic)] = TopicOffset(
                min_offset=self._store.min_offset(topic, queue_id),
                max_offset=end,
                last_update_timestamp=-1 if last_ms is None else last_ms,
            )
        return request.reply(body=encode_body(table))

    def handle_system_topics(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        body = TopicList(topic_list=sorted(self._topics.system_topics))
        return request.reply(body=encode_body(body))


def same(text: str, version: DataVersion) -> bool:
    """Whether a peer that pages through a table still pages through this version of it."""
    try:
        return bool(text.strip()) and decode_body(text.encode(), DataVersion) == version
    except ProtocolError:
        return False


def whole_number(text: str | None) -> int | None:
    """A number of the configuration; what the file has instead counts as not there."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def page_of(
    table: Mapping[str, object],
    settings: Settings,
    *,
    first: int | None,
    most: int | None,
    is_same: bool | None,
) -> list[str]:
    """The names to answer with: all for those that ask for no page, else a page of the sorted.

    A client that pages through a version that no longer exists starts again.
    """
    unused = settings.current.unused_properties
    is_paged = not (first is None and most is None and is_same is None)
    if not is_paged or unused.get("enableSplitMetadata") != "true":
        return list(table)
    sizes = [most, whole_number(unused.get("splitMetadataSize"))]
    size = min([each for each in sizes if each is not None], default=len(table))
    start = max(0, first or 0) if is_same else 0
    return sorted(table)[start : start + max(0, size)]
