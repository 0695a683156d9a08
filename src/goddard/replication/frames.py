"""RocketMQ's HA protocol as bytes: the reports of a slave and the frames of a master.

Neither side sends a greeting. The slave reports first; then both directions repeat until the end.

    report  slave to master   int64 end of the slave's log
    frame   master to slave   int64 offset of the first byte, int32 size, the bytes

A frame of size 0 is a heartbeat; its offset is that of the next byte. A frame ends at the limit
of its sender or at the end of a segment, so it can begin and end inside a record.
"""

from struct import Struct
from typing import Final, NamedTuple

from goddard.errors import ProtocolError

REPORT_BYTES: Final = 8
HEADER_BYTES: Final = 12
# The read buffer of RocketMQ's slave, which must hold a whole frame.
MAX_FRAME_BYTES: Final = 4 << 20
MAX_DATA_BYTES: Final = MAX_FRAME_BYTES - HEADER_BYTES

_REPORT: Final = Struct(">q")
_HEADER: Final = Struct(">qi")


class Frame(NamedTuple):
    """Bytes of the master's log from an offset on; a heartbeat has none."""

    physical_offset: int
    data: bytes

    @property
    def end_offset(self) -> int:
        return self.physical_offset + len(self.data)


def encode_report(physical_offset: int) -> bytes:
    return _REPORT.pack(physical_offset)


def encode_header(physical_offset: int, size: int) -> bytes:
    """What precedes ``size`` bytes of the log in a frame."""
    return _HEADER.pack(physical_offset, size)


class ReportDecoder:
    """Reads the reports of one slave, in whatever pieces they arrive."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """Returns the last complete report, which replaces those before it; None without one."""
        data = self._rest + data
        complete = len(data) - len(data) % REPORT_BYTES
        self._rest = data[complete:]
        if not complete:
            return None
        (offset,) = _REPORT.unpack_from(data, complete - REPORT_BYTES)
        return int(offset)


class FrameDecoder:
    """Reads the frames of a master, in whatever pieces they arrive."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the frames that ``data`` completes.

        Raises ProtocolError if a header is impossible; the connection cannot be used after that.
        """
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            offset, size = _HEADER.unpack_from(buffer, start)
            if offset < 0 or not 0 <= size <= MAX_DATA_BYTES:
                raise ProtocolError(
                    f"a replication frame of {size} bytes at offset {offset} is impossible"
                )
            end = start + HEADER_BYTES + size
            if end > len(buffer):
                break
            frames.append(Frame(offset, bytes(buffer[start + HEADER_BYTES : end])))
            start = end
        del buffer[:start]
        return frames
