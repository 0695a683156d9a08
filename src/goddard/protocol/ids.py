"""Message ids: offset ids (where a message is stored), unique ids (which client created it when).

Both are upper-case hexadecimal, 32 digits with an IPv4 address and 56 with IPv6::

    offset id   store_ip  port:i32  physical_offset:i64
    unique id   client_ip  pid:u16  process_hash:i32  month_ms:u32  counter:u16

``month_ms`` counts from the start of the month in the client's time zone. Nothing here reads a
clock: the time is an argument. A UniqueIds belongs to one thread.
"""

from datetime import UTC, datetime, timedelta, tzinfo
from struct import Struct
from typing import Final, NamedTuple

from goddard.errors import ProtocolError
from goddard.protocol.record import Host

_OFFSET_TAIL: Final = Struct(">iq")
_UNIQUE_TAIL: Final = Struct(">HiIH")
_ID_BYTES: Final = {16: 4, 28: 16}  # length of an id: length of its address, for both kinds
# Java tolerates a clock that was set back by less than this.
_CLOCK_STEP_MS: Final = 1_000_000


def _id_bytes(text: str) -> tuple[bytes, int]:
    """An id as bytes, and the length of the address at its start."""
    # fromhex also accepts spaces, so length and characters are checked first.
    if len(text) not in (32, 56) or not (text.isascii() and text.isalnum()):
        raise ProtocolError(f"{text[:80]!r} is not a message id of 32 or 56 hexadecimal digits")
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise ProtocolError(f"{text!r} is not hexadecimal") from error
    return raw, _ID_BYTES[len(raw)]


def offset_message_id(store_host: Host, physical_offset: int) -> str:
    ip, port = store_host
    return (ip + _OFFSET_TAIL.pack(port, physical_offset)).hex().upper()


def parse_offset_message_id(text: str) -> tuple[Host, int]:
    """The broker's address and the physical offset that an offset message id names."""
    raw, ip_length = _id_bytes(text)
    port, physical_offset = _OFFSET_TAIL.unpack_from(raw, ip_length)
    if not 0 <= port <= 0xFFFF or physical_offset < 0:
        raise ProtocolError(f"{text} is not an offset message id; it may be a unique id")
    return Host(raw[:ip_length], port), physical_offset


class UniqueId(NamedTuple):
    """The id that a client writes into the property UNIQ_KEY of a message."""

    ip: bytes
    pid: int
    process_hash: int
    month_ms: int
    counter: int

    def __str__(self) -> str:
        tail = _UNIQUE_TAIL.pack(self.pid, self.process_hash, self.month_ms, self.counter)
        return (self.ip + tail).hex().upper()

    def created_ms(self, now_ms: int, zone: tzinfo | None = None) -> int:
        """When the id was created: in the month of ``now_ms``, or in the previous month if that
        time is not before ``now_ms``."""
        start_ms, _ = _month_of(now_ms, zone)
        if start_ms + self.month_ms >= now_ms:
            start_ms, _ = _month_of(start_ms - 1, zone)
        return start_ms + self.month_ms


def parse_unique_id(text: str) -> UniqueId:
    raw, ip_length = _id_bytes(text)
    return UniqueId(raw[:ip_length], *_UNIQUE_TAIL.unpack_from(raw, ip_length))


def _month_of(now_ms: int, zone: tzinfo | None) -> tuple[int, int]:
    """Start of the month of ``now_ms`` and of the next one; a zone of None is the local one."""
    moment = datetime.fromtimestamp(now_ms // 1000, UTC).astimezone(zone)
    first = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    # 32 days after the first of a month is a day of the next month.
    after = (first + timedelta(days=32)).replace(day=1)
    return _local_ms(first, zone), _local_ms(after, zone)


def _local_ms(moment: datetime, zone: tzinfo | None) -> int:
    # The UTC offset may differ from that of the original time (summer time).
    exact = moment.replace(tzinfo=zone) if zone is not None else moment.replace(tzinfo=None)
    return int(exact.timestamp()) * 1000


class UniqueIds:
    """Generates the unique ids of one process.

    ``process_hash`` distinguishes processes with the same address and pid (Java uses the hash of
    its class loader); any number that differs between processes works.
    """

    __slots__ = (
        "_counter",
        "_last_ms",
        "_month_end_ms",
        "_month_start_ms",
        "_prefix",
        "_timed_prefix",
        "_zone",
    )

    def __init__(
        self, ip: bytes, pid: int, process_hash: int, *, zone: tzinfo | None = None
    ) -> None:
        if len(ip) not in (4, 16):
            raise ValueError(f"an address has 4 or 16 bytes, not {len(ip)}")
        head = (pid & 0xFFFF).to_bytes(2, "big") + (process_hash & 0xFFFFFFFF).to_bytes(4, "big")
        self._prefix = (ip + head).hex().upper()
        self._zone = zone
        self._counter = 0
        # The prefix of the ids of one millisecond.
        self._last_ms = -1
        self._timed_prefix = ""
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next(self, now_ms: int) -> str:
        """A new id. The counter wraps at 65536, which is enough for one millisecond."""
        if now_ms != self._last_ms:
            self._last_ms = now_ms
            self._timed_prefix = f"{self._prefix}{self._month_ms(now_ms):08X}"
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return f"{self._timed_prefix}{counter:04X}"

    def reserve(self, now_ms: int, count: int) -> tuple[str, int]:
        """Reserve ``count`` ids: returns their common prefix and the counter of the first id. The
        counters of the others follow, and wrap as in ``next``."""
        if not 0 < count <= 1 << 16:
            raise ValueError(f"1 to 65536 ids can be reserved at once, not {count}")
        first = int(self.next(now_ms)[-4:], 16)
        self._counter = (first + count) & 0xFFFF
        return self._timed_prefix, first

    def _month_ms(self, now_ms: int) -> int:
        if now_ms >= self._month_end_ms:
            self._month_start_ms, self._month_end_ms = _month_of(now_ms, self._zone)
        month_ms = now_ms - self._month_start_ms
        if -_CLOCK_STEP_MS < month_ms < 0:
            return 0
        return month_ms & 0xFFFFFFFF
