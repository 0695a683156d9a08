"""Columns of records that ``goddard.core.columns`` decodes: its buffers become Arrow arrays.

Where it leaves records to Python, or is not compiled, the result is None, and ``RecordColumns``
decodes them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from goddard.core import IS_COMPILED
from goddard.protocol.message import SysFlag
from goddard.protocol.record import Host
from goddard.spark import arrays
from goddard.spark.columns import COLUMNS, TRANSACTIONS

if IS_COMPILED or TYPE_CHECKING:
    from goddard.core import columns as core_columns

# Limits that no message reaches.
_FIRST_MS: Final = -(2**63)
_LAST_MS: Final = 2**63 - 1
_COMPRESSED: Final = int(SysFlag.COMPRESSED)
_FROM_PROPERTIES: Final = frozenset({"msgId", "keys", "tags", "properties"})
_TRANSACTION_TEXTS: Final = tuple(name.encode("ascii") for name in TRANSACTIONS)

_Rows: TypeAlias = "core_columns.Rows"
_Buffer: TypeAlias = "bytes | core_columns.Texts | core_columns.Maps | None"

_DECODERS: Final[dict[str, Callable[[_Rows], _Buffer]]] = {
    "topic": lambda rows: rows.topics(),
    "queueId": lambda rows: rows.int32_at(12),
    "queueOffset": lambda rows: rows.int64_at(20),
    "commitLogOffset": lambda rows: rows.int64_at(28),
    "offsetMsgId": lambda rows: rows.offset_ids(),
    "body": lambda rows: rows.bodies(),
    "flag": lambda rows: rows.int32_at(16),
    "sysFlag": lambda rows: rows.int32_at(36),
    "bornTimestamp": lambda rows: rows.times(False),
    "storeTimestamp": lambda rows: rows.times(True),
    "bornHost": lambda rows: rows.hosts(False, _host_text),
    "storeHost": lambda rows: rows.hosts(True, _host_text),
    "reconsumeTimes": lambda rows: rows.reconsume_times(),
    "preparedTransactionOffset": lambda rows: rows.prepared_offsets(),
    "transaction": lambda rows: rows.transactions(_TRANSACTION_TEXTS),
}


def decode_batch(
    bodies: Iterable[bytes],
    names: Sequence[str],
    *,
    broker_name: str | None,
    topic: str | None,
) -> pa.RecordBatch | None:
    """The named columns of the records that fill each of ``bodies``."""
    if not IS_COMPILED:
        return None
    rows = core_columns.Rows()
    if not all(rows.add(body) for body in bodies):
        return None
    return _batch(rows, names, broker_name, topic)


def decode_selected(
    data: bytes,
    starts: Sequence[int] | arrays.Positions,
    names: Sequence[str],
    *,
    broker_name: str | None,
    is_selected: Callable[[str], bool],
    start_ms: int | None,
    end_ms: int | None,
) -> pa.RecordBatch | None:
    """The named columns of those records at ``starts`` whose topic and store time are selected."""
    if not IS_COMPILED:
        return None
    rows = core_columns.Rows()
    if not rows.add_at(data, arrays.positions(starts)):
        return None
    rows.keep(
        lambda topic: is_selected(topic.decode("utf-8", "replace")),
        _FIRST_MS if start_ms is None else start_ms,
        _LAST_MS if end_ms is None else end_ms - 1,
    )
    return _batch(rows, names, broker_name, None)


def _batch(
    rows: _Rows, names: Sequence[str], broker_name: str | None, topic: str | None
) -> pa.RecordBatch | None:
    if "body" in names and rows.flags & _COMPRESSED:
        return None
    constants = {"brokerName": broker_name}
    if topic is not None:
        constants["topic"] = topic
    properties = rows.properties(_FROM_PROPERTIES.intersection(names))
    if properties is None:
        return None
    columns = []
    for name in names:
        if name in constants:
            text = constants[name]
            kind = COLUMNS[name]
            column = (
                pa.nulls(rows.count, kind)
                if text is None
                else arrays.repeat_string(text, rows.count)
            )
        else:
            decoded = properties[name] if name in properties else _DECODERS[name](rows)
            if decoded is None:
                return None
            column = _array(decoded, COLUMNS[name], rows.count)
        columns.append(column)
    fields = [pa.field(name, COLUMNS[name]) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _array(decoded: Any, kind: pa.DataType, count: int) -> pa.Array:
    if isinstance(decoded, bytes):
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(decoded)])
    if isinstance(decoded, core_columns.Maps):
        offsets = pa.Array.from_buffers(
            pa.int32(), count + 1, [None, pa.py_buffer(decoded.offsets)]
        )
        names, values = (_texts(each, pa.string()) for each in (decoded.names, decoded.values))
        return pa.MapArray.from_arrays(offsets, names, values).cast(kind)
    return _texts(decoded, kind)


def _texts(decoded: Any, kind: pa.DataType) -> pa.Array:
    valid = pa.py_buffer(decoded.valid) if decoded.null_count else None
    values = pa.py_buffer(decoded.values).slice(0, decoded.size)
    texts = pa.Array.from_buffers(
        pa.binary(), decoded.count, [valid, pa.py_buffer(decoded.offsets), values]
    )
    return texts if kind == pa.binary() else arrays.strings(texts)


def _host_text(host: bytes) -> bytes:
    port = int.from_bytes(host[-4:], "big", signed=True)
    return str(Host(host[:-4], port)).encode("ascii")
