"""How far groups have read, and where queues begin and end.

``Offsets`` keeps the progress of groups (``consumerOffset.json``; the owner of the table saves it),
what was last pulled, and the marks of an offset reset on the server: until the group's next pull
its commits are dropped, that pull is answered with the new offset, and the mark is gone. It belongs
to the loop.

Handled: 14 query, 15 update, 29 by time, 30 maximum, 31 minimum, 32 earliest store time.
"""

import logging
from collections.abc import Mapping
from typing import Final

from goddard.broker.settings import Settings
from goddard.broker.tables.topics import Groups, Topics
from goddard.protocol.bodies import DataVersion
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import (
    GetEarliestStoreTimeRequest,
    GetEarliestStoreTimeResponse,
    GetMaxOffsetRequest,
    GetMinOffsetRequest,
    OffsetResponse,
    QueryConsumerOffsetRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from goddard.store.log.reading import GetStatus
from goddard.store.queues.queue import Boundary
from goddard.store.store import MessageStore
from goddard.store.tables import ConsumerOffsetTable, pair_key
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

_log = logging.getLogger(__name__)

_NO_ZERO: Final = "Not found, do not set to zero, maybe this group boot first"
_NOT_FOUND: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"

_TopicGroup = tuple[str, str]


class Offsets:
    """Progress of groups, and the offsets of queues."""

    def __init__(
        self,
        table: ConsumerOffsetTable,
        *,
        store: MessageStore,
        settings: Settings,
        topics: Topics,
        groups: Groups,
    ) -> None:
        self.table = table
        self._store = store
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._resets: dict[_TopicGroup, dict[int, int]] = {}
        self._pulled: dict[_TopicGroup, dict[int, int]] = {}
        self._pulled_count = 0
        self._is_full_logged = False
        # What consumers committed to this slave, and its master may not have: by group, topic and
        # queue.
        self.unsent: dict[tuple[str, str, int], int] = {}

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.handle_query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.handle_update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.handle_search,
            RequestCode.GET_MAX_OFFSET: self.handle_max,
            RequestCode.GET_MIN_OFFSET: self.handle_min,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.handle_earliest,
        }

    # Progress

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The group's next offset; -1 when it has none."""
        if self._resets and self._settings.current.server_side_reset:
            marks = self._resets.get((topic, group))
            if marks is not None and queue_id in marks:
                return marks[queue_id]
        return self.table.query(group, topic, queue_id)

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int, peer: str) -> bool:
        """Set the group's next offset. It may go back, which is worth a line in the log.

        False, with nothing done, if there are too many offsets and this would be a new one.
        """
        if not self._has_room(group, topic, queue_id):
            return False
        if self._settings.current.is_slave:
            if not self.unsent:
                # A master that comes back takes the newer table.
                self.table.next_version()
            self.unsent[group, topic, queue_id] = queue_offset
        before = self.table.commit(group, topic, queue_id, queue_offset)
        if queue_offset < before:
            _log.warning(
                "[NOTIFYME]update consumer offset less than store. clientHost=%s, key=%s@%s, "
                "queueId=%d, requestOffset=%d, storeOffset=%d",
                peer,
                topic,
                group,
                queue_id,
                queue_offset,
                before,
            )
        return True

    def _has_room(self, group: str, topic: str, queue_id: int) -> bool:
        most = self._settings.current.offset_limit
        if self.table.count < most:
            self._is_full_logged = False
            return True
        if self.table.query(group, topic, queue_id) >= 0:
            return True
        if not self._is_full_logged:
            self._is_full_logged = True
            _log.warning(
                "the offset of group %s for topic %s, queue %d, was not stored: the broker has %d "
                "offsets, and maxConsumerOffsets=%d",
                group,
                topic,
                queue_id,
                self.table.count,
                most,
            )
        return False

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Where the group's next pull was told to begin; else its next offset, or -1."""
        offsets = self._pulled.get((topic, group))
        found = None if offsets is None else offsets.get(queue_id)
        return self.query(group, topic, queue_id) if found is None else found

    def note_pulled(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        offsets = self._pulled.get((topic, group))
        if offsets is None or queue_id not in offsets:
            if self._pulled_count >= self._settings.current.offset_limit:
                return  # the committed offset stands for it
            self._pulled_count += 1
            offsets = self._pulled.setdefault((topic, group), {})
        offsets[queue_id] = next_offset

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the group's next offset and make its next pull begin there."""
        if queue_id < 0 or queue_offset < 0:
            raise ValueError(f"queue {queue_id} cannot be reset to {queue_offset}")
        self._resets.setdefault((topic, group), {})[queue_id] = queue_offset
        self.table.commit(group, topic, queue_id, queue_offset)

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        return queue_id in self._resets.get((topic, group), ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset of a reset that the group has not heard of yet; it has, after this."""
        if not self._resets:
            return None
        marks = self._resets.get((topic, group))
        if marks is None:
            return None
        offset = marks.pop(queue_id, None)
        if not marks:
            del self._resets[topic, group]
        return offset if self._settings.current.server_side_reset else None

    def copy(
        self, by_pair: Mapping[str, Mapping[int, int]], data_version: DataVersion | None
    ) -> None:
        """Become what the master has, but for what was committed here since."""
        table = {pair: dict(offsets) for pair, offsets in by_pair.items()}
        for (group, topic, queue_id), offset in self.unsent.items():
            of_pair = table.setdefault(pair_key(topic, group), {})
            of_pair[queue_id] = max(offset, of_pair.get(queue_id, -1))
        self.table.copy(table, data_version)

    def clone(self, source_group: str, target_group: str, topic: str) -> None:
        """Give one group the progress of another."""
        self.table.clone(source_group, target_group, topic)

    def remove(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget a group, a topic, or a group's progress in a topic."""
        self.table.remove(group=group, topic=topic)
        for marks in (self._resets, self._pulled):
            for key in [
                key for key in marks if topic in (None, key[0]) and group in (None, key[1])
            ]:
                del marks[key]
        self._pulled_count = sum(map(len, self._pulled.values()))

    # Requests

    def handle_query(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = QueryConsumerOffsetRequest.decode(request.fields)
        offset = self.query(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            if header.set_zero_if_not_found is False:
                return request.reply(ResponseCode.QUERY_NOT_FOUND, _NO_ZERO, ext_fields={})
            if not self._starts_in_memory(header.topic, header.queue_id):
                return request.reply(ResponseCode.QUERY_NOT_FOUND, _NOT_FOUND, ext_fields={})
            # A new group on a young queue reads it from the beginning.
            offset = 0
        return _answer(request, offset)

    def handle_update(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = UpdateConsumerOffsetRequest.decode(request.fields)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        # A slave creates no groups: it knows of a new one when the master has it.
        if group not in self._groups and not (
            self._settings.current.is_slave and self._groups.find(group) is not None
        ):
            return request.reply(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!", {}
            )
        config = self._topics.get(topic)
        if config is None:
            return request.reply(
                ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!", ext_fields={}
            )
        # Java takes any number, and keeps it for ever.
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < queues and not self._store.max_offset(topic, queue_id):
            return request.reply(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] queues:[{queues}]",
                ext_fields={},
            )
        if self.is_reset(group, topic, queue_id) and self._settings.current.server_side_reset:
            return request.reply(remark="Offset has been previously reset", ext_fields={})
        # Clients send -1 for queues that they have not read of.
        if header.commit_offset >= 0 and not self.commit(
            group, topic, queue_id, header.commit_offset, connection.remote
        ):
            return request.reply(
                ResponseCode.SYSTEM_ERROR,
                f"the offset was not stored: the broker has {self.table.count} offsets already "
                "(maxConsumerOffsets)",
                ext_fields={},
            )
        return request.reply(ext_fields={})

    def handle_search(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        return self._search(request, SearchOffsetRequest.decode(request.fields))

    def handle_max(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        fields = request.fields
        if "Topic" in fields and "topic" not in fields:
            # Early Go clients search by time with this code, and names of their own.
            named = {
                **fields,
                "topic": fields["Topic"],
                "queueId": fields.get("QueueId", fields.get("queueId", "")),
            }
            return self._search(request, SearchOffsetRequest.decode(named))
        header = GetMaxOffsetRequest.decode(fields)
        return _answer(request, self._store.max_offset(header.topic, header.queue_id))

    def handle_min(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = GetMinOffsetRequest.decode(request.fields)
        answer = _answer(request, self._store.min_offset(header.topic, header.queue_id))
        answer.remark = ""  # as Java has it
        return answer

    def handle_earliest(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = GetEarliestStoreTimeRequest.decode(request.fields)
        time_ms = self._store.earliest_store_time(header.topic, header.queue_id)
        answer = GetEarliestStoreTimeResponse(timestamp=-1 if time_ms is None else time_ms)
        return request.reply(ext_fields=answer.encode())

    def _search(self, request: RemotingCommand, header: SearchOffsetRequest) -> RemotingCommand:
        is_upper = (header.boundary_type or "").upper() == "UPPER"
        boundary = Boundary.UPPER if is_upper else Boundary.LOWER
        offset = self._store.offset_by_time(
            header.topic, header.queue_id, header.timestamp, boundary
        )
        return _answer(request, offset)

    def _starts_in_memory(self, topic: str, queue_id: int) -> bool:
        """Whether a queue still has its very first message, and that near the end of the log."""
        first = self._store.get(topic, queue_id, 0, 1)
        return first.status is GetStatus.FOUND and not first.is_slave_suggested


def _answer(request: RemotingCommand, offset: int) -> RemotingCommand:
    return request.reply(ext_fields=OffsetResponse(offset=offset).encode())
