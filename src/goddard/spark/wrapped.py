"""Batches that are stored as one record, taken apart into records of their own.

Topics of the type BatchCQ keep a producer's batch as it came: one record, flagged, whose body holds
the messages, and whose queue offset is that of the first. Everything else here knows only records
that are messages; so the messages of such a batch are written down as records, as a broker would
have stored them one by one. Rare, and so one Python object for each is no harm.
"""

import itertools
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from goddard.protocol.compression import decompress, without_compression
from goddard.protocol.message import SysFlag, iter_batch
from goddard.protocol.record import MAX_BODY_BYTES, decode_record, encode_record
from goddard.spark import arrays
from goddard.spark.arrays import Positions

_SYS_FLAG_AT: Final = 36
# Both bits of the system flag that such a batch has.
WRAPPED: Final = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)


Starts = TypeVar("Starts", list[int], Positions)


def unwrapped(data: bytes, starts: Starts) -> tuple[bytes, Starts | list[int]]:
    """The records that begin there, batches taken apart; the same if there are none.

    ProtocolError for a batch that is malformed.
    """
    raw = np.frombuffer(data, dtype=np.uint8)
    flags = arrays.int32_at(raw, np.asarray(starts, dtype=np.int64) + _SYS_FLAG_AT)
    is_wrapped = (flags & WRAPPED) == WRAPPED
    if not is_wrapped.any():
        return data, starts
    records: list[bytes] = []
    for start, is_batch in zip(map(int, starts), is_wrapped.tolist(), strict=True):
        if is_batch:
            records += _messages(data, start)
        else:
            size = int.from_bytes(data[start : start + 4], "big")
            records.append(data[start : start + size])
    ends = list(itertools.accumulate(map(len, records), initial=0))
    return b"".join(records), ends[:-1]


def _messages(data: bytes, start: int) -> list[bytes]:
    record, _ = decode_record(data, start, check_crc=False)
    body = decompress(record.body, record.sys_flag, MAX_BODY_BYTES)
    sys_flag = without_compression(record.sys_flag & ~WRAPPED)
    return [
        encode_record(
            replace(
                record,
                body=entry.body,
                properties=entry.properties,
                flag=entry.flag,
                sys_flag=sys_flag,
                queue_offset=record.queue_offset + index,
                body_crc=None,
            )
        )
        for index, entry in enumerate(iter_batch(body))
    ]
