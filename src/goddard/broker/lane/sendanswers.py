"""Answers to plain sends: who is told what once a group of records is stored, or is not.

The requests of a group come chunk by chunk (``Asked``), in the order of their records; a batch has
one, a run. An answer to what went well is made from a template (``sendwire.AnswerEncoder``); the
others as ``send`` makes them. Belongs to the loop.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias

from goddard.broker.lane.sendwire import AnswerEncoder, SendHeader, decode_opaque, encode_opaque
from goddard.broker.sending.send import PutStats, Sends
from goddard.errors import StoreError
from goddard.protocol.codes import CommandFlag, RequestCode, SerializeType
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.store.runs import LogRun, Placed, count_messages, each_entry
from goddard.transport.connection import Connection

_ONEWAY: Final = int(CommandFlag.ONEWAY)
# Of either kind of place.
_TOPIC: Final = itemgetter(0)
_SIZE: Final = itemgetter(4)

# What the answer to a request needs besides where its messages went: opaque (empty: no answer is
# wanted), queue id, unique id, header encoding.
Mark: TypeAlias = tuple[bytes, bytes, bytes | None, int]
# The requests of one chunk, and who sent it.
Asked: TypeAlias = tuple[Connection, list[Mark]]


def mark_of(request: SendHeader, unique_id: bytes | None, encoding: int) -> Mark:
    opaque = b"" if request.flag & _ONEWAY else encode_opaque(request.opaque, encoding)
    return opaque, b"%d" % request.fields.queue_id, unique_id, encoding


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
        self, asked: list[Asked], placed: Sequence[Placed] | None, error: StoreError | None
    ) -> None:
        if placed is not None and self._stats is not None:
            _count(self._stats, placed)
        if placed is None or error is not None:
            self._answer_unusual(asked, placed, error)
            return
        encode, encode_batch = self._encoder.one, self._encoder.batch
        places = iter(placed)
        for connection, marks in asked:
            answers: list[bytes] = []
            # In this order: after the last mark no place is taken.
            for (opaque, queue_id, unique_id, encoding), place in zip(marks, places, strict=False):
                if not opaque:
                    pass
                elif isinstance(place, LogRun):
                    answers.append(
                        encode_batch(
                            opaque, queue_id, unique_id, encoding, place[2], place.physical_offsets
                        )
                    )
                else:
                    answers.append(
                        encode(opaque, queue_id, unique_id, encoding, place[2], place[3])
                    )
            if answers and not connection.is_closed:
                connection.send_now(b"".join(answers) if len(answers) > 1 else answers[0])

    def _answer_unusual(
        self, asked: list[Asked], placed: Sequence[Placed] | None, error: StoreError | None
    ) -> None:
        at = 0
        for connection, marks in asked:
            answers: list[bytes] = []
            for mark in marks:
                if mark[0]:
                    place = None if placed is None else placed[at]
                    answers.append(self._unusual_answer(mark, place, error))
                at += 1
            if answers and not connection.is_closed:
                connection.send_now(b"".join(answers))

    def _unusual_answer(self, mark: Mark, place: Placed | None, error: StoreError | None) -> bytes:
        opaque, queue_id, unique_id, encoding = mark
        request = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2,
            opaque=decode_opaque(opaque, encoding),
            serialize_type=SerializeType(encoding),
        )
        if place is None:
            return encode_frame(self._sends.failure(request, error))
        text = None if unique_id is None else unique_id.decode()
        entries = each_entry((place,))
        return encode_frame(self._sends.success(request, entries, int(queue_id), text, error))


def _count(stats: PutStats, placed: Sequence[Placed]) -> None:
    """Tell the statistics, once per row of requests for one topic."""
    for topic, items in groupby(placed, _TOPIC):
        its = list(items)
        stats.put(topic, count_messages(its), sum(map(_SIZE, its)), len(its))
