"""PULL_MESSAGE and LITE_PULL_MESSAGE (11, 361): checks, filters, reading, parking, answering.

The order of the checks, the codes, remarks and response fields are RocketMQ's.

``Pulls.handle`` answers any request. ``Pulls.serve`` does the same for plain ones that
``goddard.broker.lane.pulls`` has read, and copies their records by compiled code from the mapped
log into the response. Both belong to the loop. Messages that are not in the page cache are read
by a thread before.
"""

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Final, Protocol

from goddard.broker.consuming.clients import Clients, unsupported_filter
from goddard.broker.consuming.filters import (
    ConsumerFilters,
    PullFilter,
    TagCodes,
    check_expression,
    tag_filter,
)
from goddard.broker.consuming.longpoll import ParkedPull, ParkedPulls
from goddard.broker.consuming.offsets import Offsets
from goddard.broker.consuming.pull_call import PullCall, PullFields
from goddard.broker.settings import Settings
from goddard.broker.tables.topics import Groups, Topics
from goddard.clock import Clock, SystemClock
from goddard.errors import GoddardError
from goddard.protocol import names
from goddard.protocol.bodies import ConsumeType, TopicConfig
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.protocol.codes import (
    Permission,
    RequestCode,
    ResponseCode,
)
from goddard.protocol.filters.expression import FilterSyntaxError, is_tag_type
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import PullRequest
from goddard.store.log.cold import ColdRead
from goddard.store.log.reading import FoundMessages, GetResult, GetStatus, is_bulk_read
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler, error_response

_logger: Final = logging.getLogger(__name__)

PULL: Final = int(RequestCode.PULL_MESSAGE)
LITE_PULL: Final = int(RequestCode.LITE_PULL_MESSAGE)

_FOUND: Final = int(ResponseCode.SUCCESS)
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_RETRY: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)
_READ: Final = int(Permission.READ)

# Messages of a bulk read; each takes a queue entry to look at.
_MAX_BULK_COUNT: Final = 10_000

# Bits of a pull's sysFlag.
_COMMITS_OFFSET: Final = 1
_MAY_SUSPEND: Final = 2
HAS_SUBSCRIPTION: Final = 4
_HAS_CLASS_FILTER: Final = 8
# The bit of a group's forbidden table that says it may not read a topic.
_READ_FORBIDDEN: Final = 1 << 2
# Java's ForbiddenType.
_FORBIDDEN_BROKER: Final = 1
_FORBIDDEN_GROUP: Final = 2
_FORBIDDEN_TOPIC: Final = 3
_FORBIDDEN_BROADCAST: Final = 4
_FORBIDDEN_SUBSCRIPTION: Final = 5
_MASTER_ID: Final = 0
_FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

# What an outcome is answered with. Java makes a queue when it is asked for, so that one without
# messages "is empty": a missing one is answered so, by the offset.
_ANSWERS: Final = {
    status: (code, status.value)
    for status, code in {
        GetStatus.FOUND: _FOUND,
        GetStatus.NO_MATCHED_MESSAGE: _RETRY,
        GetStatus.MESSAGE_WAS_REMOVING: _RETRY,
        GetStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
        GetStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
        GetStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
        GetStatus.OFFSET_TOO_SMALL: _MOVED,
    }.items()
}
_EMPTY_REMARK: Final = GetStatus.NO_MESSAGE_IN_QUEUE.value
_RESET_REMARK: Final = "OFFSET_RESET"


class GetStats(Protocol):
    """Who counts what consumers get."""

    def get(self, topic: str, group: str, count: int, size: int) -> None: ...

    def get_took(self, queue_id: int, topic: str, group: str, took_ms: int) -> None: ...

    def miss(self) -> None: ...


class RefusedError(Exception):
    """A check failed. ``forbidden_type`` tells clients what kind of permission is missing."""

    def __init__(self, code: ResponseCode, remark: str, forbidden_type: int | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.forbidden_type = forbidden_type


class Pulls:
    """The handler of pulls."""

    def __init__(
        self,
        *,
        store: MessageStore,
        settings: Settings,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        filters: ConsumerFilters,
        offsets: Offsets,
        parked_pulls: ParkedPulls,
        stats: GetStats | None = None,
        executor: Executor | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._filters = filters
        self._offsets = offsets
        self._parked_pulls = parked_pulls
        self._stats = stats
        self._executor = executor
        self._clock: Clock = clock or SystemClock()
        self._cold_count = 0

    def handlers(self) -> Mapping[int, Handler]:
        return {PULL: self.handle, LITE_PULL: self.handle}

    def handle(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        header = PullRequest.decode(request.fields)
        if request.is_oneway:
            return None
        call = PullCall(request.code, request.opaque, request.serialize_type, header, connection)
        return self._pull(call, can_suspend=True)

    def serve(self, call: PullCall, *, can_suspend: bool) -> None:
        """Answer a pull or park it; an error is a response, too."""
        try:
            answer = self._pull(call, can_suspend=can_suspend)
        except Exception as error:
            request = call.reply(call.code, "")
            if not isinstance(error, GoddardError):
                _logger.exception("a pull of %s failed", call.connection.remote)
            answer = error_response(request, error)
        if answer is not None:
            call.connection.respond(answer)

    def _pull(self, call: PullCall, *, can_suspend: bool) -> RemotingCommand | None:
        """The refusal to send; None if the answer is already sent or the pull is parked."""
        fields = call.fields
        try:
            group, topic = self.admit(call)
            filter_ = self.filter_of(call, group)
        except RefusedError as refused:
            kind = refused.forbidden_type
            return call.reply(
                refused.code, refused.remark, {} if kind is None else {"forbiddenType": str(kind)}
            )
        count = self.max_count(fields)
        if not call.is_warm:
            cold = self._store.cold_read(fields.topic, fields.queue_id, fields.queue_offset, count)
            if cold is not None:
                return self._warm(call, cold, can_suspend=can_suspend)
        reset = self._offsets.take_reset(group.group_name, fields.topic, fields.queue_id)
        if reset is not None:
            return self._answer_reset(call, group, topic, reset)
        began_ms = self._clock.monotonic_ms()
        result = self._read(call, filter_, count)
        known = _ANSWERS.get(result.status)
        if known is None:
            known = _MOVED if fields.queue_offset else _NOT_FOUND, _EMPTY_REMARK
        code, remark = known
        offsets = self._offsets
        offsets.note_pulled(group.group_name, fields.topic, fields.queue_id, result.next_offset)
        # A negative offset is what clients send while they have none.
        if can_suspend and fields.commit_offset >= 0 and self.may_commit(fields):
            offsets.commit(
                group.group_name,
                fields.topic,
                fields.queue_id,
                fields.commit_offset,
                call.connection.remote,
            )
        self._count(fields, result, self._clock.monotonic_ms() - began_ms)
        if code == _NOT_FOUND and can_suspend and fields.sys_flag & _MAY_SUSPEND:
            return self._park(call, filter_)
        if code == _MOVED:
            _logger.info(
                "PULL_OFFSET_MOVED:correction offset. topic=%s, groupId=%s, queueId=%d, "
                "requestOffset=%d, newOffset=%d, %s",
                fields.topic,
                fields.consumer_group,
                fields.queue_id,
                fields.queue_offset,
                result.next_offset,
                remark,
            )
        return self._answer(call, code, remark, result, group, topic)

    def _warm(self, call: PullCall, cold: ColdRead, *, can_suspend: bool) -> RemotingCommand | None:
        """Have a thread read the messages into the page cache, then serve the pull."""
        if self._cold_count >= self._settings.current.pull_queue_capacity:
            return call.reply(
                ResponseCode.SYSTEM_BUSY, "[OVERLOAD]too many pulls wait for the disk, try later"
            )

        def serve(_: asyncio.Future[None]) -> None:
            self._cold_count -= 1
            if not call.connection.is_closed:
                call.is_warm = True
                self.serve(call, can_suspend=can_suspend)
                call.is_warm = False  # if it is parked, it will ask for other messages

        self._cold_count += 1
        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._executor, cold.warm).add_done_callback(serve)
        return None

    def _read(self, call: PullCall, filter_: PullFilter | None, count: int) -> FoundMessages:
        """The messages, by compiled code for a plain pull whose filter needs no records."""
        fields = call.fields
        if call.is_plain and (filter_ is None or isinstance(filter_, TagCodes)):
            return self._store.gather(
                fields.topic,
                fields.queue_id,
                fields.queue_offset,
                count,
                max_bytes=fields.max_msg_bytes,
                message_filter=filter_,
            )
        return self._store.get(
            fields.topic,
            fields.queue_id,
            fields.queue_offset,
            count,
            max_bytes=fields.max_msg_bytes,
            message_filter=filter_,
        )

    def _count(self, fields: PullFields, result: FoundMessages, took_ms: int) -> None:
        """For the statistics; with disableConsumeIfConsumerReadSlowly, also for what follows."""
        stats, config = self._stats, self._settings.current
        if not result.count:
            if stats is not None:
                stats.miss()
            return
        group = fields.consumer_group
        if stats is not None:
            stats.get(fields.topic, group, result.count, result.total_bytes)
            stats.get_took(fields.queue_id, fields.topic, group, took_ms)
        if config.disable_slow_consumers:
            behind_bytes = self._store.log_max_offset - result.first_physical_offset
            if behind_bytes > config.slow_consumer_bytes:
                _logger.info(
                    "[PROTECT_BROKER]the consumer[%s] consume slowly, %d bytes, disable it",
                    group,
                    behind_bytes,
                )
                self._groups.disable_consuming(group)

    # Checks

    def admit(self, call: PullCall) -> tuple[SubscriptionGroupConfig, TopicConfig]:
        """The group and the topic of a pull that may be served; else a RefusedError."""
        fields = call.fields
        config = self._settings.current
        if not config.broker_permission & _READ:
            raise RefusedError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_ip1}] pulling message is forbidden",
                _FORBIDDEN_BROKER,
            )
        if call.code == LITE_PULL and not config.lite_pull_enable:
            raise RefusedError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_ip1}] for lite pull consumer is forbidden",
                _FORBIDDEN_BROKER,
            )
        group = self._groups.find(fields.consumer_group)
        if group is None:
            raise RefusedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{fields.consumer_group}] does not exist, {_FAQ}",
            )
        if not group.consume_enable:
            raise RefusedError(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {fields.consumer_group}",
                _FORBIDDEN_GROUP,
            )
        topic = self._topics.get(fields.topic)
        if topic is None:
            raise RefusedError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{fields.topic}] not exist, apply first please! {_FAQ}",
            )
        if not topic.perm & _READ:
            raise RefusedError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{fields.topic}] pulling message is forbidden",
                _FORBIDDEN_TOPIC,
            )
        if not 0 <= fields.queue_id < topic.read_queue_nums:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[/{call.connection.remote}]",
            )
        return group, topic

    def filter_of(self, call: PullCall, group: SubscriptionGroupConfig) -> PullFilter | None:
        """What an admitted pull wants of the queue; else a RefusedError."""
        fields = call.fields
        config = self._settings.current
        if fields.sys_flag & _HAS_CLASS_FILTER:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, unsupported_filter("CLASS"))
        if fields.sys_flag & HAS_SUBSCRIPTION:
            filter_ = self._carried_filter(fields)
        else:
            filter_ = self._subscribed_filter(fields, group)
        if config.reject_pull_consumer:
            self._reject_pull_consumer(call)
        return filter_

    def _carried_filter(self, fields: PullFields) -> PullFilter | None:
        """The filter of a pull that brings its subscription along."""
        expression, kind = fields.subscription or "", fields.expression_type
        try:
            if is_tag_type(kind):
                return tag_filter(expression)
            sql = check_expression(kind or "", expression)
        except FilterSyntaxError as error:
            _logger.warning(
                "Parse the consumer's subscription[%s] failed, group: %s: %s",
                expression[:1000],
                fields.consumer_group,
                error,
            )
            raise RefusedError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
            ) from error
        if not self._settings.current.property_filter:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, unsupported_filter(kind or ""))
        return self._filters.of_sql(sql, fields.topic, fields.consumer_group)

    def _subscribed_filter(
        self, fields: PullFields, group: SubscriptionGroupConfig
    ) -> PullFilter | None:
        """The filter that the group's heartbeats told."""
        members = self._clients.consumer_group(fields.consumer_group)
        if members is None:
            raise RefusedError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist{_FAQ}",
            )
        if members.is_broadcast and not group.consume_broadcast_enable:
            raise RefusedError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{fields.consumer_group}] can not consume by broadcast way",
                _FORBIDDEN_BROADCAST,
            )
        if self._groups.table.forbidden(group.group_name, fields.topic) & _READ_FORBIDDEN:
            raise RefusedError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{fields.consumer_group}] is forbidden "
                f"for topic[{fields.topic}]",
                _FORBIDDEN_SUBSCRIPTION,
            )
        subscription = members.subscriptions.get(fields.topic)
        if subscription is None:
            raise RefusedError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{_FAQ}"
            )
        if subscription.sub_version < fields.sub_version:
            raise RefusedError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        if subscription.class_filter_mode:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, unsupported_filter("CLASS"))
        if is_tag_type(subscription.expression_type):
            return self._filters.of_tags(subscription)
        found = self._filters.get(fields.topic, fields.consumer_group)
        if found is None:
            raise RefusedError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        data, sql = found
        if data.client_version < fields.sub_version:
            raise RefusedError(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest",
            )
        if not self._settings.current.property_filter:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, unsupported_filter(subscription.expression_type)
            )
        return self._filters.of_sql(sql, fields.topic, fields.consumer_group)

    def _reject_pull_consumer(self, call: PullCall) -> None:
        """With rejectPullConsumerEnable only members of a push group may pull."""
        group = call.fields.consumer_group
        members = self._clients.consumer_group(group)
        if members is not None and (
            members.consume_type is not ConsumeType.ACTIVELY or call.connection in members.clients
        ):
            return
        if not names.is_system_group(group):
            raise RefusedError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                "the consumer's group info not exist, or the pull consumer is rejected "
                f"by server.{_FAQ}",
            )

    def may_commit(self, fields: PullFields) -> bool:
        """Whether a pull may tell how far its group is."""
        return bool(fields.sys_flag & _COMMITS_OFFSET) and not self._settings.current.is_slave

    def max_count(self, fields: PullFields) -> int:
        """What the store gives at most, or less; never what a peer makes up."""
        limits = self._store.config
        most = max(limits.max_get_memory_count, limits.max_get_disk_count)
        if is_bulk_read(limits, fields.max_msg_bytes):
            most = _MAX_BULK_COUNT
        return max(1, min(fields.max_msg_nums, most))

    def next_broker_id(self, group: SubscriptionGroupConfig, *, is_slave_suggested: bool) -> int:
        """The broker that a consumer should pull from next."""
        if not self._settings.current.slave_reads:
            return _MASTER_ID
        return group.which_broker_when_consume_slowly if is_slave_suggested else group.broker_id

    # Parking and answering

    def _park(self, call: PullCall, filter_: PullFilter | None) -> RemotingCommand | None:
        fields = call.fields
        config = self._settings.current
        timeout_ms = (
            fields.suspend_timeout_millis if config.long_polling else config.short_polling_ms
        )
        parked = ParkedPull(
            (fields.topic, fields.queue_id),
            fields.queue_offset,
            call.connection,
            filter_,
            lambda: self.serve(call, can_suspend=False),
        )
        if self._parked_pulls.park(parked, timeout_ms):
            return None
        if self._parked_pulls.is_stopped:
            return call.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping")
        return call.reply(
            ResponseCode.SYSTEM_BUSY, "[OVERLOAD]too many pull requests are held, try later"
        )

    def _answer_reset(
        self, call: PullCall, group: SubscriptionGroupConfig, topic: TopicConfig, offset: int
    ) -> RemotingCommand | None:
        fields = call.fields
        _logger.info(
            "The queue under pulling was previously reset to start from %d, %s %d, group %s",
            offset,
            fields.topic,
            fields.queue_id,
            fields.consumer_group,
        )
        result = GetResult(
            GetStatus.OFFSET_OVERFLOW_BADLY,
            offset,
            self._store.min_offset(fields.topic, fields.queue_id),
            self._store.max_offset(fields.topic, fields.queue_id),
        )
        return self._answer(call, _MOVED, _RESET_REMARK, result, group, topic)

    def _answer(
        self,
        call: PullCall,
        code: int,
        remark: str,
        result: FoundMessages,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
    ) -> RemotingCommand | None:
        """The response to send; None if it is sent already."""
        broker_id = self.next_broker_id(group, is_slave_suggested=result.is_slave_suggested)
        return call.answer(
            code, remark, result, broker_id, topic.topic_sys_flag, group.group_sys_flag
        )
