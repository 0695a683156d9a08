# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The records of plain sends that are to be appended together, compiled.

They gather in a ``StagedSends``, complete but for their places. ``place`` fills the places in and
gives the bytes to write; after that the block gives queue entries and columns for the key index.
"""

from __future__ import annotations

from typing import Any

import cython

from goddard.protocol.hashing import java_hash

if cython.compiled:
    from cython.cimports.goddard.core.primitives import get32, get64, put32, put64, to_bytes
    from cython.cimports.goddard.core.sendtypes import (
        ENTRY_BYTES,
        HOST_BYTES,
        PHYSICAL_OFFSET_AT,
        QUEUE_OFFSET_AT,
        STORE_TIME_AT,
        SYS_FLAG_AT,
        StagedQueue,
        StagedQueues,
        StagedRecord,
        StagedRecords,
        StagedRequest,
        StagedRequests,
        Text,
    )
    from cython.cimports.libc.stdlib import free, malloc, realloc
    from cython.cimports.libc.string import memcpy

IS_COMPILED = cython.compiled


@cython.cclass
class OpenTopic:
    """A topic that plain sends may go to; a new one is made when its queues change."""

    name: str
    encoded: bytes
    queue_count: cython.int
    topic_hash: cython.uint
    block: cython.longlong
    places: cython.p_int

    def __init__(self, name: str, queue_count: int) -> None:
        if not 0 < queue_count <= 65536 or self.places != cython.NULL:
            raise ValueError(f"{queue_count} queues")
        self.places = cython.cast(cython.p_int, malloc(queue_count * cython.sizeof(cython.int)))
        if self.places == cython.NULL:
            raise MemoryError
        self.name = name
        self.encoded = name.encode("ascii")
        if not 0 < len(self.encoded) <= 127:
            raise ValueError(f"a topic of {len(self.encoded)} bytes")
        self.queue_count = queue_count
        self.topic_hash = java_hash(f"{name}#") & 0xFFFFFFFF
        self.block = 0

    def __dealloc__(self) -> None:
        free(self.places)


@cython.cclass
class Peer:
    """Who sends. ``born_host`` is packed as records have it; ``connection`` is the caller's."""

    born_host: bytes
    connection: object

    def __init__(self, born_host: bytes, connection: object) -> None:
        if len(born_host) != HOST_BYTES:
            raise ValueError("a host of 8 bytes is needed")
        self.born_host = born_host
        self.connection = connection


@cython.cclass
class StagedSends:
    """The records of plain sends that are to be appended together, and who waits for them."""

    number: cython.longlong
    records: cython.p_uchar
    size_: cython.Py_ssize_t
    capacity: cython.Py_ssize_t
    ids: cython.p_uchar
    ids_size: cython.Py_ssize_t
    ids_capacity: cython.Py_ssize_t
    record: StagedRecords
    record_count: cython.Py_ssize_t
    record_capacity: cython.Py_ssize_t
    request: StagedRequests
    request_count_: cython.Py_ssize_t
    request_capacity: cython.Py_ssize_t
    queue: StagedQueues
    queue_count: cython.Py_ssize_t
    queue_capacity: cython.Py_ssize_t
    topics: list[OpenTopic]
    peers: list[Peer]
    placed_requests: cython.Py_ssize_t
    first_offset: cython.longlong
    last_offset: cython.longlong
    time_ms: cython.longlong

    def __cinit__(self) -> None:
        self.number = 0
        self.records = self.ids = cython.NULL
        self.record = cython.NULL
        self.request = cython.NULL
        self.queue = cython.NULL
        self.topics = []  # of each queue
        self.peers = []
        self.placed_requests = 0
        self.first_offset = self.last_offset = -1
        self.time_ms = 0

    def __dealloc__(self) -> None:
        free(self.records)
        free(self.ids)
        free(self.record)
        free(self.request)
        free(self.queue)

    # Making room; a failure leaves everything as it was.

    @cython.cfunc
    def reserve_bytes(self, count: cython.Py_ssize_t) -> cython.int:
        wanted: cython.Py_ssize_t = self.size_ + count
        if wanted > self.capacity:
            wanted = max(2 * self.capacity, wanted, 4096)
            grown: cython.p_uchar = cython.cast(cython.p_uchar, realloc(self.records, wanted))
            if grown == cython.NULL:
                raise MemoryError
            self.records = grown
            self.capacity = wanted
        return 0

    @cython.cfunc
    def keep_id(self, unique_id: Text) -> cython.int:
        """Copy the unique id of the request that is being added; without one its length is -1."""
        if unique_id.length <= 0:
            return 0
        wanted: cython.Py_ssize_t = self.ids_size + unique_id.length
        if wanted > self.ids_capacity:
            wanted = max(2 * self.ids_capacity, wanted, 512)
            grown: cython.p_uchar = cython.cast(cython.p_uchar, realloc(self.ids, wanted))
            if grown == cython.NULL:
                raise MemoryError
            self.ids = grown
            self.ids_capacity = wanted
        memcpy(self.ids + self.ids_size, unique_id.start, unique_id.length)
        return 0

    @cython.cfunc
    def reserve_records(self, count: cython.Py_ssize_t) -> cython.int:
        wanted: cython.Py_ssize_t = self.record_count + count
        if wanted > self.record_capacity:
            wanted = max(2 * self.record_capacity, wanted, 16)
            grown: StagedRecords = cython.cast(
                StagedRecords, realloc(self.record, wanted * cython.sizeof(StagedRecord))
            )
            if grown == cython.NULL:
                raise MemoryError
            self.record = grown
            self.record_capacity = wanted
        return 0

    @cython.cfunc
    def reserve_request(self) -> cython.int:
        if self.request_count_ == self.request_capacity:
            wanted: cython.Py_ssize_t = max(2 * self.request_capacity, 16)
            grown: StagedRequests = cython.cast(
                StagedRequests, realloc(self.request, wanted * cython.sizeof(StagedRequest))
            )
            if grown == cython.NULL:
                raise MemoryError
            self.request = grown
            self.request_capacity = wanted
        return 0

    @cython.cfunc
    def queue_of(self, topic: OpenTopic, queue_id: cython.int) -> cython.int:
        """The number of a queue in this block."""
        place: cython.int
        if topic.block != self.number:
            for place in range(topic.queue_count):
                topic.places[place] = -1
            topic.block = self.number
        place = topic.places[queue_id]
        if place >= 0:
            return place
        if self.queue_count == self.queue_capacity:
            wanted: cython.Py_ssize_t = max(2 * self.queue_capacity, 8)
            grown: StagedQueues = cython.cast(
                StagedQueues, realloc(self.queue, wanted * cython.sizeof(StagedQueue))
            )
            if grown == cython.NULL:
                raise MemoryError
            self.queue = grown
            self.queue_capacity = wanted
        self.topics.append(topic)
        place = cython.cast(cython.int, self.queue_count)
        self.queue_count += 1
        self.queue[place].messages = 0
        self.queue[place].requests = 0
        self.queue[place].size = 0
        self.queue[place].queue_offset = -1
        self.queue[place].end_offset = -1
        self.queue[place].queue_id = queue_id
        topic.places[queue_id] = place
        return place

    # What the appender and the commit log use

    @property
    def request_count(self) -> int:
        value: cython.Py_ssize_t = self.request_count_
        return value

    @property
    def message_count(self) -> int:
        value: cython.Py_ssize_t = self.record_count
        return value

    @property
    def size(self) -> int:
        value: cython.Py_ssize_t = self.size_
        return value

    @property
    def physical_offset(self) -> int:
        """Where the first record is."""
        return int(self.first_offset)

    @property
    def end_offset(self) -> int:
        """Where the last record ends."""
        return int(self.last_offset)

    @property
    def store_timestamp_ms(self) -> int:
        return int(self.time_ms)

    @property
    def is_placed(self) -> bool:
        return self.placed_requests == self.request_count_

    @property
    def queue_keys(self) -> list[tuple[str, int]]:
        """The queues of the records, each once."""
        keys = []
        number: cython.Py_ssize_t
        topic: OpenTopic
        for number in range(self.queue_count):
            topic = self.topics[number]
            keys.append((topic.name, self.queue[number].queue_id))
        return keys

    @property
    def queue_messages(self) -> list[int]:
        """How many records go to each of ``queue_keys``."""
        return [self.queue[number].messages for number in range(self.queue_count)]

    def set_queue_offsets(self, queue_offsets: list[int]) -> None:
        """Say at which queue offset the records of each of ``queue_keys`` begin."""
        number: cython.Py_ssize_t
        if len(queue_offsets) != self.queue_count:
            raise ValueError(f"{len(queue_offsets)} offsets for {self.queue_count} queues")
        for number in range(self.queue_count):
            self.queue[number].queue_offset = queue_offsets[number]

    def place(
        self, physical_offset: cython.longlong, room: cython.longlong, now_ms: cython.longlong
    ) -> bytes:
        """The next records, as many as fit into ``room`` bytes, with their places filled in.

        The messages of one batch come together.
        """
        request: cython.Py_ssize_t = self.placed_requests
        first: cython.Py_ssize_t
        number: cython.Py_ssize_t
        each: cython.Py_ssize_t
        begin: cython.Py_ssize_t
        end: cython.Py_ssize_t
        data: cython.p_uchar
        if request == self.request_count_:
            return b""
        first = number = self.request[request].first
        begin = end = self.record[first].at
        while request < self.request_count_ and self.request[request].end - begin <= room:
            end = self.request[request].end
            number = self.request[request].first + self.request[request].count
            request += 1
        if end == begin:
            return b""
        if self.placed_requests == 0:
            self.first_offset = physical_offset
        self.placed_requests = request
        self.last_offset = physical_offset + end - begin
        self.time_ms = now_ms
        for each in range(first, number):
            data = self.records + self.record[each].at
            put64(
                data + QUEUE_OFFSET_AT,
                self.queue[self.record[each].queue].queue_offset + self.record[each].number,
            )
            put64(data + PHYSICAL_OFFSET_AT, physical_offset + self.record[each].at - begin)
            put64(data + STORE_TIME_AT, now_ms)
        return to_bytes(self.records + begin, end - begin)

    # What dispatch uses, once everything is placed

    def queue_entries(self) -> list[tuple[tuple[str, int], int, bytes, int]]:
        """For each queue its key, first queue offset, entries, and where its last record ends."""
        if self.record_count == 0 or not self.is_placed:
            return []
        size: cython.Py_ssize_t = ENTRY_BYTES * self.record_count
        entries: cython.p_uchar = cython.cast(cython.p_uchar, malloc(size))
        starts: cython.p_longlong = cython.cast(
            cython.p_longlong, malloc((self.queue_count + 1) * cython.sizeof(cython.longlong))
        )
        number: cython.Py_ssize_t
        total: cython.longlong = 0
        physical_offset: cython.longlong
        out: cython.p_uchar
        queue: StagedQueues
        topic: OpenTopic
        try:
            if entries == cython.NULL or starts == cython.NULL:
                raise MemoryError
            for number in range(self.queue_count):
                starts[number] = total
                total += ENTRY_BYTES * self.queue[number].messages
            for number in range(self.record_count):
                queue = cython.address(self.queue[self.record[number].queue])
                out = (
                    entries
                    + starts[self.record[number].queue]
                    + ENTRY_BYTES * self.record[number].number
                )
                physical_offset = get64(self.records + self.record[number].at + PHYSICAL_OFFSET_AT)
                queue.end_offset = physical_offset + self.record[number].size
                put64(out, physical_offset)
                put32(out + 8, self.record[number].size)
                put64(out + 12, self.record[number].tags_code)
            found = []
            for number in range(self.queue_count):
                topic = self.topics[number]
                queue = cython.address(self.queue[number])
                found.append(
                    (
                        (topic.name, queue.queue_id),
                        queue.queue_offset,
                        to_bytes(entries + starts[number], ENTRY_BYTES * queue.messages),
                        queue.end_offset,
                    )
                )
            return found
        finally:
            free(entries)
            free(starts)

    def key_columns(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """What the key index needs, a column each: properties back to back, where each ends (i64),
        the hash of ``topic#`` (u32), system flags (i64) and physical offsets (i64), in the
        machine's byte order."""
        count: cython.Py_ssize_t = self.record_count
        number: cython.Py_ssize_t
        length: cython.Py_ssize_t
        total: cython.Py_ssize_t = 0
        data: cython.p_uchar
        for number in range(count):
            total += self.record[number].properties_length
        properties: cython.p_uchar = cython.cast(cython.p_uchar, malloc(total + 1))
        columns: cython.p_longlong = cython.cast(
            cython.p_longlong, malloc((4 * count + 1) * cython.sizeof(cython.longlong))
        )
        hashes: cython.p_uint = cython.cast(cython.p_uint, columns + 3 * count)
        try:
            if properties == cython.NULL or columns == cython.NULL:
                raise MemoryError
            total = 0
            for number in range(count):
                data = self.records + self.record[number].at
                length = self.record[number].properties_length
                memcpy(properties + total, data + self.record[number].size - length, length)
                total += length
                columns[number] = total
                columns[count + number] = get32(data + SYS_FLAG_AT)
                columns[2 * count + number] = get64(data + PHYSICAL_OFFSET_AT)
                hashes[number] = self.record[number].topic_hash
            data = cython.cast(cython.p_uchar, columns)
            return (
                to_bytes(properties, total),
                to_bytes(data, 8 * count),
                to_bytes(cython.cast(cython.p_uchar, hashes), 4 * count),
                to_bytes(data + 8 * count, 8 * count),
                to_bytes(data + 16 * count, 8 * count),
            )
        finally:
            free(properties)
            free(columns)

    def topic_totals(self) -> dict[str, tuple[int, int, int]]:
        """Messages, bytes and requests by topic."""
        totals: dict[str, tuple[int, int, int]] = {}
        number: cython.Py_ssize_t
        topic: OpenTopic
        for number in range(self.queue_count):
            topic = self.topics[number]
            messages, size, requests = totals.get(topic.name, (0, 0, 0))
            totals[topic.name] = (
                messages + self.queue[number].messages,
                size + self.queue[number].size,
                requests + self.queue[number].requests,
            )
        return totals

    # One by one, for those who need it so

    def entries(self) -> list[tuple[str, int, int, int, int, int, int, int, bytes]]:
        """The records with the values of a LogEntry."""
        found = []
        number: cython.Py_ssize_t
        size: cython.int
        length: cython.int
        data: cython.p_uchar
        topic: OpenTopic
        for number in range(self.record_count):
            data = self.records + self.record[number].at
            size = self.record[number].size
            length = self.record[number].properties_length
            topic = self.topics[self.record[number].queue]
            found.append(
                (
                    topic.name,
                    self.queue[self.record[number].queue].queue_id,
                    get64(data + QUEUE_OFFSET_AT),
                    get64(data + PHYSICAL_OFFSET_AT),
                    size,
                    self.record[number].tags_code,
                    get64(data + STORE_TIME_AT),
                    get32(data + SYS_FLAG_AT),
                    to_bytes(data + size - length, length),
                )
            )
        return found

    def requests(self) -> list[tuple[Any, int, bool, bool, int, str | None, int, int]]:
        """For each request its connection, opaque, whether its header is binary and it is one-way,
        queue id, unique id, first record and number of records."""
        found = []
        number: cython.Py_ssize_t
        request: StagedRequests
        peer: Peer
        for number in range(self.request_count_):
            request = cython.address(self.request[number])
            unique_id = None
            if request.unique_id_length >= 0:
                unique_id = to_bytes(
                    self.ids + request.unique_id_at, request.unique_id_length
                ).decode()
            peer = self.peers[request.peer]
            found.append(
                (
                    peer.connection,
                    request.opaque,
                    bool(request.is_binary),
                    bool(request.is_oneway),
                    self.queue[self.record[request.first].queue].queue_id,
                    unique_id,
                    request.first,
                    request.count,
                )
            )
        return found
