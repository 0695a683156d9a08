"""Answers to plain sends: who is told what once a group of records is stored, or is not.

The requests of a group come as ``Run``s, one per chunk, in the order of their records. An answer to
what went well is made from a template (``sendwire.AnswerEncoder``); the others as ``send`` makes
them. Belongs to the loop.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from goddard.broker.send import PutStats, Sends
from goddard.broker.sendwire import AnswerEncoder, SendHeader, decode_opaque, encode_opaque
from goddard.errors import StoreError
from goddard.protocol.codes import CommandFlag, RequestCode, SerializeType
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.store.records import LogEntry
from goddard.transport.connection import Connection

_ONEWAY: Final = int(CommandFlag.ONEWAY)

# What the answer to a request needs besides where its messages went: opaque (empty: no answer is
# wanted), queue id, unique id, header encoding, number of messages.
Mark: TypeAlias = tuple[bytes, bytes, bytes | None, int, int]
# The requests of one chunk, and who sent it.
Run: TypeAlias = tuple[Connection, list[Mark]]


def mark_of(request: SendHeader, unique_id: bytes | None, encoding: int, count: int) -> Mark:
    opaque = b"" if request.flag & _ONEWAY else encode_opaque(request.opaque, encoding)
    return opaque, b"%d" % request.fields.queue_id, unique_id, encoding, count


class SendAnswers:
    """``configure`` before the first group."""

    def __init__(self, sends: Sends, stats: PutStats | None) -> None:
        self._sends = sends
        self._stats = stats
        self.configure(b"", "", "")

    def configure(self, store_host: bytes, trace: str, region: str) -> None:
        """``store_host`` is packed, as records hold it."""
        self._encoder = AnswerEncoder(store_host.hex().upper().encode(), trace, region)

    def tell(
        self, runs: list[Run], entries: Sequence[LogEntry] | None, error: StoreError | None
    ) -> None:
        if entries is not None and self._stats is not None:
            self._count(self._stats, runs, entries)
        if entries is None or error is not None:
            self._answer_unusual(runs, entries, error)
            return
        encode, encode_batch = self._encoder.one, self._encoder.batch
        at = 0
        for connection, marks in runs:
            answers: list[bytes] = []
            for opaque, queue_id, unique_id, encoding, count in marks:
                entry = entries[at]
                if not opaque:
                    pass
                elif count == 1:
                    answers.append(
                        encode(opaque, queue_id, unique_id, encoding, entry[2], entry[3])
                    )
                else:
                    offsets = [each[3] for each in entries[at : at + count]]
                    answers.append(
                        encode_batch(opaque, queue_id, unique_id, encoding, entry[2], offsets)
                    )
                at += count
            if answers and not connection.is_closed:
                connection.send_now(b"".join(answers) if len(answers) > 1 else answers[0])

    def _answer_unusual(
        self, runs: list[Run], entries: Sequence[LogEntry] | None, error: StoreError | None
    ) -> None:
        at = 0
        for connection, marks in runs:
            answers: list[bytes] = []
            for mark in marks:
                count = mark[-1]
                if mark[0]:
                    stored = None if entries is None else entries[at : at + count]
                    answers.append(self._unusual_answer(mark, stored, error))
                at += count
            if answers and not connection.is_closed:
                connection.send_now(b"".join(answers))

    @staticmethod
    def _count(stats: PutStats, runs: list[Run], entries: Sequence[LogEntry]) -> None:
        """Tell the statistics, once per run of requests for one topic."""
        at = 0
        topic, requests, count, size = entries[0].topic, 0, 0, 0
        for _, marks in runs:
            for mark in marks:
                entry = entries[at]
                if entry[0] != topic:
                    stats.put(topic, count, size, requests)
                    topic, requests, count, size = entry[0], 0, 0, 0
                messages = mark[-1]
                requests += 1
                count += messages
                size += (
                    entry[4]
                    if messages == 1
                    else sum([each[4] for each in entries[at : at + messages]])
                )
                at += messages
        stats.put(topic, count, size, requests)

    def _unusual_answer(
        self,
        mark: Mark,
        entries: Sequence[LogEntry] | None,
        error: StoreError | None,
    ) -> bytes:
        opaque, queue_id, unique_id, encoding, _ = mark
        request = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2,
            opaque=decode_opaque(opaque, encoding),
            serialize_type=SerializeType(encoding),
        )
        if entries is None:
            return encode_frame(self._sends.failure(request, error))
        text = None if unique_id is None else unique_id.decode()
        return encode_frame(self._sends.success(request, entries, int(queue_id), text, error))
