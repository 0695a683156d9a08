# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The answers to plain sends, compiled: from a placed block to whole frames."""

from __future__ import annotations

from typing import Any

import cython

if cython.compiled:
    from cython.cimports.goddard.core.primitives import get64, put32, to_bytes
    from cython.cimports.goddard.core.sendtypes import (
        BINARY_HEAD_BYTES,
        HOST_BYTES,
        PHYSICAL_OFFSET_AT,
        QUEUE_OFFSET_AT,
        StagedRecords,
        StagedRequests,
    )
    from cython.cimports.goddard.core.staged_sends import Peer, StagedSends
    from cython.cimports.goddard.core.texts import write_hex, write_number
    from cython.cimports.libc.stdlib import free, realloc
    from cython.cimports.libc.string import memcpy

IS_COMPILED = cython.compiled


@cython.cclass
class AnswerWriter:
    """``json_parts`` (6) and ``binary_parts`` (5) are what answers have between their values."""

    store_host: bytes
    json_parts: tuple[bytes, ...]
    binary_parts: tuple[bytes, ...]
    out: cython.p_uchar
    out_size: cython.Py_ssize_t
    out_capacity: cython.Py_ssize_t

    def __init__(
        self, store_host: bytes, json_parts: tuple[bytes, ...], binary_parts: tuple[bytes, ...]
    ) -> None:
        if len(store_host) != HOST_BYTES:
            raise ValueError("a host of 8 bytes is needed")
        if len(json_parts) != 6 or len(binary_parts) != 5:
            raise ValueError("answers have 6 parts in JSON and 5 in binary")
        self.store_host = store_host
        self.json_parts = json_parts
        self.binary_parts = binary_parts

    def __dealloc__(self) -> None:
        free(self.out)

    def answers(self, staged: StagedSends) -> list[tuple[Any, bytes]]:
        """The answers to requests that went well: for each connection in turn, whole frames."""
        found = []
        number: cython.Py_ssize_t
        peer_number: cython.int = -1
        peer: Peer
        if not staged.is_placed:
            raise ValueError("the block has not been placed")
        self.out_size = 0
        for number in range(staged.request_count_):
            if staged.request[number].is_oneway:
                continue
            if staged.request[number].peer != peer_number:
                if self.out_size:
                    peer = staged.peers[peer_number]
                    found.append((peer.connection, to_bytes(self.out, self.out_size)))
                peer_number = staged.request[number].peer
                self.out_size = 0
            if staged.request[number].is_binary:
                self._answer_binary(staged, number)
            else:
                self._answer_json(staged, number)
        if self.out_size:
            peer = staged.peers[peer_number]
            found.append((peer.connection, to_bytes(self.out, self.out_size)))
        return found

    @cython.cfunc
    def _reserve_out(self, count: cython.Py_ssize_t) -> cython.int:
        wanted: cython.Py_ssize_t = self.out_size + count
        if wanted > self.out_capacity:
            wanted = max(2 * self.out_capacity, wanted, 4096)
            grown: cython.p_uchar = cython.cast(cython.p_uchar, realloc(self.out, wanted))
            if grown == cython.NULL:
                raise MemoryError
            self.out = grown
            self.out_capacity = wanted
        return 0

    @cython.cfunc
    def _add_part(self, part: bytes) -> cython.int:
        size: cython.Py_ssize_t = len(part)
        self._reserve_out(size)
        memcpy(self.out + self.out_size, cython.cast(cython.p_const_char, part), size)
        self.out_size += size
        return 0

    @cython.cfunc
    def _add_number(self, value: cython.longlong) -> cython.int:
        self._reserve_out(20)
        self.out_size += write_number(self.out + self.out_size, value)
        return 0

    @cython.cfunc
    def _add_ids(self, staged: StagedSends, request: StagedRequests) -> cython.int:
        """Add the message ids of a request: store host and physical offset of each record."""
        number: cython.Py_ssize_t
        data: cython.p_const_uchar
        host: cython.p_const_uchar = cython.cast(
            cython.p_const_uchar, cython.cast(cython.p_const_char, self.store_host)
        )
        self._reserve_out(33 * request.count)
        for number in range(request.count):
            if number:
                self.out[self.out_size] = 44  # ","
                self.out_size += 1
            data = staged.records + staged.record[request.first + number].at
            write_hex(self.out + self.out_size, get64(host))
            write_hex(self.out + self.out_size + 16, get64(data + PHYSICAL_OFFSET_AT))
            self.out_size += 32
        return 0

    @cython.cfunc
    def _add_unique_id(self, staged: StagedSends, request: StagedRequests) -> cython.int:
        self._reserve_out(request.unique_id_length)
        memcpy(
            self.out + self.out_size,
            staged.ids + request.unique_id_at,
            request.unique_id_length,
        )
        self.out_size += request.unique_id_length
        return 0

    @cython.cfunc
    def _answer_json(self, staged: StagedSends, number: cython.Py_ssize_t) -> cython.int:
        request: StagedRequests = cython.address(staged.request[number])
        record: StagedRecords = cython.address(staged.record[request.first])
        start: cython.Py_ssize_t = self.out_size
        self._reserve_out(8)
        self.out_size += 8
        self._add_part(self.json_parts[0])
        self._add_number(staged.queue[record.queue].queue_id)
        if request.unique_id_length >= 0:
            self._add_part(self.json_parts[1])
            self._add_unique_id(staged, request)
        self._add_part(self.json_parts[2])
        self._add_ids(staged, request)
        self._add_part(self.json_parts[3])
        self._add_number(get64(staged.records + record.at + QUEUE_OFFSET_AT))
        self._add_part(self.json_parts[4])
        self._add_number(request.opaque)
        self._add_part(self.json_parts[5])
        put32(self.out + start, self.out_size - start - 4)
        put32(self.out + start + 4, self.out_size - start - 8)
        return 0

    @cython.cfunc
    def _answer_binary(self, staged: StagedSends, number: cython.Py_ssize_t) -> cython.int:
        request: StagedRequests = cython.address(staged.request[number])
        record: StagedRecords = cython.address(staged.record[request.first])
        start: cython.Py_ssize_t = self.out_size
        at: cython.Py_ssize_t
        self._reserve_out(8)
        self.out_size += 8
        self._add_part(self.binary_parts[0])
        at = self._begin_value(1)
        self._add_number(staged.queue[record.queue].queue_id)
        self._end_value(at)
        if request.unique_id_length >= 0:
            at = self._begin_value(2)
            self._add_unique_id(staged, request)
            self._end_value(at)
        at = self._begin_value(3)
        self._add_ids(staged, request)
        self._end_value(at)
        at = self._begin_value(4)
        self._add_number(get64(staged.records + record.at + QUEUE_OFFSET_AT))
        self._end_value(at)
        put32(self.out + start, self.out_size - start - 4)
        put32(self.out + start + 4, self.out_size - start - 8)
        self.out[start + 4] = 1
        put32(self.out + start + 8 + 5, request.opaque)
        put32(self.out + start + 8 + 17, self.out_size - start - 8 - BINARY_HEAD_BYTES)
        return 0

    @cython.cfunc
    def _begin_value(self, part: cython.int) -> cython.Py_ssize_t:
        """Add the name of a field and room for the length of its value; returns where it ends."""
        self._add_part(self.binary_parts[part])
        self._reserve_out(4)
        self.out_size += 4
        return self.out_size

    @cython.cfunc
    @cython.exceptval(check=False)
    def _end_value(self, at: cython.Py_ssize_t) -> cython.void:
        put32(self.out + at - 4, self.out_size - at)
