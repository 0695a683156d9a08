# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Plain sends, compiled: from the bytes of requests to records of the log, and to their answers.

A plain send (codes 10, 310, 320) is a request whose outcome depends on nothing but a known topic, a
queue in range and limits. ``PlainSends.take`` reads whole frames in order and stops at the first
one that is not plain: from there on the general route (``goddard.broker.sending.send``) decides,
so nothing is overtaken. Whatever is unusual is not plain: spaces or escapes in JSON, fields that
are unknown or come twice, numbers that are not written the shortest way, text that is not ASCII,
properties with a meaning.

The records of many requests gather in a ``StagedSends``, complete but for their places. ``place``
fills the places in and gives the bytes to write; after that the block gives queue entries, columns
for the key index, and answers. Everything belongs to the thread that appends.

Memory: frames are read through pointers, and every length is compared with what is left before it
is used. A block owns its buffers; no pointer into a frame outlives ``take``.
"""

from __future__ import annotations

from typing import Any

import cython

if cython.compiled:
    from cython.cimports.goddard.core.primitives import get16, get32, to_bytes
    from cython.cimports.goddard.core.send_answers import AnswerWriter
    from cython.cimports.goddard.core.send_headers import read_header
    from cython.cimports.goddard.core.send_properties import PropertyReader, tags_of
    from cython.cimports.goddard.core.send_records import RecordWriter, count_batch
    from cython.cimports.goddard.core.sendtypes import (
        BATCH_HEAD_BYTES,
        BINARY_HEADER,
        FIELD_BATCH,
        FIELD_BORN_TIME,
        FIELD_DEFAULT_QUEUES,
        FIELD_FLAG,
        FIELD_MAX_RECONSUME_TIMES,
        FIELD_PROPERTIES,
        FIELD_QUEUE_ID,
        FIELD_RECONSUME_TIMES,
        FIELD_SYS_FLAG,
        FIELD_TOPIC,
        FIELD_UNIT_MODE,
        MAX_INT32,
        MAX_PROPERTIES_BYTES,
        ONEWAY_FLAG,
        RECORD_HEAD_BYTES,
        RequestHeader,
        SendProperties,
        StagedRecords,
        StagedRequests,
        Text,
    )
    from cython.cimports.goddard.core.staged_sends import OpenTopic, Peer, StagedSends
    from cython.cimports.goddard.core.texts import hash_text, read_number
    from cython.cimports.libc.string import memcmp, memcpy

IS_COMPILED = cython.compiled

# Compression and many tags; transactions, inner batches and IPv6 hosts are not plain.
_PLAIN_SYS_FLAGS = cython.declare(cython.longlong, 0x703)
_MAX_BORN_TIME = cython.declare(cython.longlong, 999_999_999_999_999_999)


@cython.cclass
class PlainSends:
    """Takes plain sends. ``configure`` it, and keep ``topics`` up to date."""

    topics: dict[bytes, OpenTopic]
    last_topic: OpenTopic | None
    blocks: cython.longlong
    header: RequestHeader
    properties: SendProperties
    property_reader: PropertyReader
    records: RecordWriter
    answer_writer: AnswerWriter
    added_properties: bytes
    max_body_bytes: cython.Py_ssize_t
    max_record_bytes: cython.Py_ssize_t
    max_batch_bytes: cython.Py_ssize_t

    def __cinit__(self) -> None:
        self.topics = {}
        self.last_topic = None
        self.blocks = 0
        self.added_properties = b""

    def configure(
        self,
        *,
        store_host: bytes,
        added_properties: bytes,
        max_body_bytes: int,
        max_record_bytes: int,
        max_batch_bytes: int,
        waits_durable: bool,
        special_names: frozenset[bytes],
        special_prefix: bytes,
        json_parts: tuple[bytes, ...],
        binary_parts: tuple[bytes, ...],
    ) -> None:
        """``added_properties`` end every message that is no batch. For the others see
        ``PropertyReader`` and ``AnswerWriter``."""
        property_reader = PropertyReader(special_names, special_prefix, waits_durable)
        records = RecordWriter(store_host)
        self.answer_writer = AnswerWriter(store_host, json_parts, binary_parts)
        self.records = records
        self.property_reader = property_reader
        self.added_properties = added_properties
        self.max_body_bytes = max_body_bytes
        self.max_record_bytes = min(max_record_bytes, 0x7FFFFFFF)
        self.max_batch_bytes = min(max_batch_bytes, 0x7FFFFFFF)

    def add_topic(self, topic: OpenTopic) -> None:
        self.topics[topic.encoded] = topic

    def forget_topics(self) -> None:
        self.topics.clear()
        self.last_topic = None

    def take(
        self, staged: StagedSends, data: bytes, peer: Peer, most: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Stage the sends of the frames at the beginning of ``data``, at most so many.

        Returns where the first frame begins that is not plain, not whole, or for a topic that is
        not among the open ones.
        """
        text: cython.p_const_uchar = cython.cast(
            cython.p_const_uchar, cython.cast(cython.p_const_char, data)
        )
        size: cython.Py_ssize_t = len(data)
        at: cython.Py_ssize_t = 0
        length: cython.Py_ssize_t
        peer_number: cython.int = cython.cast(cython.int, len(staged.peers))
        if staged.placed_requests:
            raise ValueError("the block has been placed")
        if staged.number == 0:
            self.blocks += 1
            staged.number = self.blocks
        if staged.peers and staged.peers[peer_number - 1] is peer:
            peer_number -= 1
        else:
            staged.peers.append(peer)
        while size - at >= 8 and most > 0:
            length = get32(text + at)
            if not 4 <= length <= size - at - 4:
                break
            if not self._take_frame(staged, text + at + 4, length, peer, peer_number):
                break
            at += 4 + length
            most -= 1
        return at

    def missing_topic(self, data: bytes, at: cython.Py_ssize_t) -> str | None:
        """The topic of a send at ``at`` in ``data`` if it is not among the open ones."""
        size: cython.Py_ssize_t = len(data)
        if not 0 <= at <= size - 8:
            return None
        text: cython.p_const_uchar = cython.cast(
            cython.p_const_uchar, cython.cast(cython.p_const_char, data)
        )
        length: cython.Py_ssize_t = get32(text + at)
        if not 4 <= length <= size - at - 4:
            return None
        if not read_header(text + at + 4, length, cython.address(self.header)):
            return None
        name: bytes = to_bytes(
            self.header.fields[FIELD_TOPIC].start, self.header.fields[FIELD_TOPIC].length
        )
        return None if name in self.topics else name.decode("ascii")

    @cython.cfunc
    def _find_topic(self) -> OpenTopic | None:
        text: Text = self.header.fields[FIELD_TOPIC]
        topic: OpenTopic | None = self.last_topic
        if (
            topic is not None
            and len(topic.encoded) == text.length
            and memcmp(cython.cast(cython.p_const_char, topic.encoded), text.start, text.length)
            == 0
        ):
            return topic
        topic = self.topics.get(to_bytes(text.start, text.length))
        if topic is not None:
            self.last_topic = topic
        return topic

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_bool(self, number: cython.int, is_true: cython.p_int) -> cython.bint:
        text: Text = self.header.fields[number]
        is_true[0] = 0
        if not self.header.seen >> number & 1:
            return True
        if text.length == 4 and memcmp(text.start, b"true", 4) == 0:
            is_true[0] = 1
            return True
        return text.length == 5 and memcmp(text.start, b"false", 5) == 0

    @cython.cfunc
    def _take_frame(
        self,
        staged: StagedSends,
        frame: cython.p_const_uchar,
        size: cython.Py_ssize_t,
        peer: Peer,
        peer_number: cython.int,
    ) -> cython.bint:
        body: cython.p_const_uchar
        body_bytes: cython.Py_ssize_t
        queue_id: cython.longlong = 0
        sys_flag: cython.longlong = 0
        born_ms: cython.longlong = 0
        flag: cython.longlong = 0
        other: cython.longlong = 0
        is_batch: cython.int = 0
        is_unit: cython.int = 0
        if not read_header(frame, size, cython.address(self.header)):
            return False
        topic: OpenTopic | None = self._find_topic()
        if topic is None:
            return False
        body_bytes = size - 4 - (get32(frame) & 0xFFFFFF)
        body = frame + size - body_bytes
        if not 0 < body_bytes <= self.max_body_bytes:
            return False
        fields = cython.address(self.header.fields[0])
        if (
            not read_number(fields[FIELD_QUEUE_ID], MAX_INT32, cython.address(queue_id))
            or not 0 <= queue_id < topic.queue_count
            or not read_number(fields[FIELD_SYS_FLAG], MAX_INT32, cython.address(sys_flag))
            or sys_flag & ~_PLAIN_SYS_FLAGS
            or not read_number(fields[FIELD_BORN_TIME], _MAX_BORN_TIME, cython.address(born_ms))
            or not read_number(fields[FIELD_FLAG], MAX_INT32, cython.address(flag))
            or not read_number(fields[FIELD_DEFAULT_QUEUES], MAX_INT32, cython.address(other))
            or not self._is_bool(FIELD_BATCH, cython.address(is_batch))
            or not self._is_bool(FIELD_UNIT_MODE, cython.address(is_unit))
        ):
            return False
        if self.header.seen >> FIELD_RECONSUME_TIMES & 1 and (
            not read_number(fields[FIELD_RECONSUME_TIMES], 0, cython.address(other)) or other
        ):
            return False
        if self.header.seen >> FIELD_MAX_RECONSUME_TIMES & 1 and not read_number(
            fields[FIELD_MAX_RECONSUME_TIMES], MAX_INT32, cython.address(other)
        ):
            return False
        staged.reserve_request()
        staged.reserve_records(1)
        if is_batch:
            count = self._stage_batch(
                staged,
                topic,
                cython.cast(cython.int, queue_id),
                cython.cast(cython.int, sys_flag),
                born_ms,
                peer,
                body,
                body_bytes,
            )
        else:
            count = self._stage_one(
                staged,
                topic,
                cython.cast(cython.int, queue_id),
                cython.cast(cython.int, sys_flag),
                born_ms,
                cython.cast(cython.int, flag),
                peer,
                body,
                body_bytes,
            )
        if count == 0:
            return False
        self._add_request(staged, count, frame[0] == BINARY_HEADER, peer_number)
        return True

    # Staging. What fails leaves the block as it was.

    @cython.cfunc
    def _stage_one(
        self,
        staged: StagedSends,
        topic: OpenTopic,
        queue_id: cython.int,
        sys_flag: cython.int,
        born_ms: cython.longlong,
        flag: cython.int,
        peer: Peer,
        body: cython.p_const_uchar,
        body_bytes: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Stage the record of one message; returns 1, or 0 if it is not plain."""
        added: cython.Py_ssize_t = len(self.added_properties)
        topic_bytes: cython.Py_ssize_t = len(topic.encoded)
        properties_at: cython.Py_ssize_t = RECORD_HEAD_BYTES + body_bytes + 1 + topic_bytes + 2
        staged.reserve_bytes(
            properties_at + self.header.fields[FIELD_PROPERTIES].length + 1 + added
            if self.header.seen >> FIELD_PROPERTIES & 1
            else properties_at + 1 + added
        )
        out: cython.p_uchar = staged.records + staged.size_
        length: cython.Py_ssize_t = self.property_reader.read(
            cython.address(self.header), out + properties_at, cython.address(self.properties)
        )
        if length < 0 or self.properties.unique_id.length < 0:
            return 0
        staged.keep_id(self.properties.unique_id)
        memcpy(
            out + properties_at + length,
            cython.cast(cython.p_const_char, self.added_properties),
            added,
        )
        length += added
        if length > MAX_PROPERTIES_BYTES or properties_at + length > self.max_record_bytes:
            return 0
        queue: cython.int = staged.queue_of(topic, queue_id)
        self.records.write_head(
            out, properties_at + length, queue_id, sys_flag, born_ms, flag, peer, body, body_bytes
        )
        self.records.write_tail(out + RECORD_HEAD_BYTES + body_bytes, topic, length)
        record: StagedRecords = cython.address(staged.record[staged.record_count])
        record.at = staged.size_
        record.size = cython.cast(cython.int, properties_at + length)
        record.queue = queue
        record.number = staged.queue[queue].messages
        record.properties_length = cython.cast(cython.int, length)
        record.topic_hash = topic.topic_hash
        record.tags_code = 0
        if self.properties.tags.length >= 0:
            record.tags_code = hash_text(self.properties.tags.start, self.properties.tags.length)
        staged.size_ += record.size
        staged.record_count += 1
        staged.queue[queue].messages += 1
        staged.queue[queue].size += record.size
        staged.queue[queue].requests += 1
        return 1

    @cython.cfunc
    def _stage_batch(
        self,
        staged: StagedSends,
        topic: OpenTopic,
        queue_id: cython.int,
        sys_flag: cython.int,
        born_ms: cython.longlong,
        peer: Peer,
        body: cython.p_const_uchar,
        body_bytes: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Stage the records of a batch; returns how many, or 0 if it is not plain."""
        fixed: cython.Py_ssize_t = RECORD_HEAD_BYTES + 1 + len(topic.encoded) + 2
        at: cython.Py_ssize_t = 0
        length: cython.Py_ssize_t
        properties_bytes: cython.Py_ssize_t
        start: cython.Py_ssize_t
        number: cython.Py_ssize_t
        out: cython.p_uchar
        record: StagedRecords
        count: cython.Py_ssize_t = count_batch(
            body, body_bytes, fixed, self.max_record_bytes, self.max_batch_bytes
        )
        if count == 0:
            return 0
        staged.reserve_records(count)
        # The parts of the messages are parts of the body, without 22 bytes of each.
        staged.reserve_bytes(body_bytes + count * fixed)
        if self.header.seen >> FIELD_PROPERTIES & 1:  # they are not stored
            staged.reserve_bytes(self.header.fields[FIELD_PROPERTIES].length + 1)
        if (
            self.property_reader.read(
                cython.address(self.header),
                staged.records + staged.size_,
                cython.address(self.properties),
            )
            < 0
        ):
            return 0
        staged.keep_id(self.properties.unique_id)
        queue: cython.int = staged.queue_of(topic, queue_id)
        start = staged.size_
        for number in range(count):
            length = get32(body + at + 16)
            properties_bytes = get16(body + at + BATCH_HEAD_BYTES + length)
            out = staged.records + start
            self.records.write_head(
                out,
                fixed + length + properties_bytes,
                queue_id,
                sys_flag,
                born_ms,
                get32(body + at + 12),
                peer,
                body + at + BATCH_HEAD_BYTES,
                length,
            )
            self.records.write_tail(out + RECORD_HEAD_BYTES + length, topic, properties_bytes)
            at += BATCH_HEAD_BYTES + length + 2
            memcpy(out + fixed + length, body + at, properties_bytes)
            record = cython.address(staged.record[staged.record_count + number])
            record.at = start
            record.size = cython.cast(cython.int, fixed + length + properties_bytes)
            record.queue = queue
            record.number = staged.queue[queue].messages + number
            record.properties_length = cython.cast(cython.int, properties_bytes)
            record.topic_hash = topic.topic_hash
            record.tags_code = tags_of(body + at, properties_bytes)
            start += record.size
            at += properties_bytes
        staged.queue[queue].size += start - staged.size_
        staged.size_ = start
        staged.record_count += count
        staged.queue[queue].messages += count
        staged.queue[queue].requests += 1
        return count

    @cython.cfunc
    @cython.exceptval(check=False)
    def _add_request(
        self,
        staged: StagedSends,
        count: cython.Py_ssize_t,
        is_binary: cython.bint,
        peer_number: cython.int,
    ) -> cython.void:
        """Note who waits for the last ``count`` records. There is room for it."""
        request: StagedRequests = cython.address(staged.request[staged.request_count_])
        request.first = staged.record_count - count
        request.count = count
        request.end = staged.size_
        request.unique_id_at = staged.ids_size
        request.unique_id_length = cython.cast(cython.int, self.properties.unique_id.length)
        request.opaque = self.header.opaque
        request.peer = peer_number
        request.is_binary = is_binary
        request.is_oneway = self.header.flag & ONEWAY_FLAG != 0
        if self.properties.unique_id.length > 0:
            staged.ids_size += self.properties.unique_id.length
        staged.request_count_ += 1

    def answers(self, staged: StagedSends) -> list[tuple[Any, bytes]]:
        """The answers to requests that went well: for each connection in turn, whole frames."""
        found: list[tuple[Any, bytes]] = self.answer_writer.answers(staged)
        return found
