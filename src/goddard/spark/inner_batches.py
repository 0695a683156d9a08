"""Expand batches that are stored as one record (inner batches) into one record per message.

Topics with BatchCQ consume queues store a producer's batch as one record with two flags: its body
contains the messages, and its queue offset is that of the first message. Other modules expect one
message per record, so the messages are encoded as the records that a broker would have stored for
them individually. Inner batches are rare, so one Python object per message is acceptable.
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
# The system flag of an inner batch has both bits.
INNER_BATCH_FLAGS: Final = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)


Starts = TypeVar("Starts", list[int], Positions)


def unwrap(data: bytes, starts: Starts) -> tuple[bytes, Starts | list[int]]:
    """The records at ``starts`` with inner batches expanded; unchanged if there are none.

    Raises ProtocolError for a malformed batch.
    """
    raw = np.frombuffer(data, dtype=np.uint8)
    flags = arrays.int32_at(raw, np.asarray(starts, dtype=np.int64) + _SYS_FLAG_AT)
    is_inner_batch = (flags & INNER_BATCH_FLAGS) == INNER_BATCH_FLAGS
    if not is_inner_batch.any():
        return data, starts
    records: list[bytes] = []
    for start, is_batch in zip(map(int, starts), is_inner_batch.tolist(), strict=True):
        if is_batch:
            records += _expand(data, start)
        else:
            size = int.from_bytes(data[start : start + 4], "big")
            records.append(data[start : start + size])
    ends = list(itertools.accumulate(map(len, records), initial=0))
    return b"".join(records), ends[:-1]


def _expand(data: bytes, start: int) -> list[bytes]:
    record, _ = decode_record(data, start, check_crc=False)
    body = decompress(record.body, record.sys_flag, MAX_BODY_BYTES)
    sys_flag = without_compression(record.sys_flag & ~INNER_BATCH_FLAGS)
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
