"""A cache of encoded route responses: a repeated query gets its response without decoding.

A client queries a route repeatedly, with requests that differ only in their opaque. The cache maps
the bytes before and after the opaque to the response, which is also stored as the bytes before and
after its opaque.

This is correct because the key contains every byte of the frame except the opaque's digits; a
header in which ``opaque`` occurs twice, or is not a plain number, is handled normally; only
successful responses are cached; and every change of a route, of the order settings or of the
configuration clears the cache, through the generation of the route table. Only JSON headers are
cached.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from goddard.errors import ProtocolError
from goddard.nameserver.rules import RULES
from goddard.protocol.codes import RequestCode, ResponseCode, SerializeType
from goddard.protocol.frame import RemotingCommand, decode_frame, encode_head
from goddard.protocol.responses import ResponseError
from goddard.transport.connection import Connection
from goddard.transport.handlers import error_response
from goddard.transport.rules import Gate

_PREFIX: Final = Struct(">iI")
_MARK: Final = b'"opaque":'
_QUERY: Final = b'"code":%d,' % RequestCode.GET_ROUTEINFO_BY_TOPIC
_MAX_QUERY_BYTES: Final = 2_048
_MAX_ANSWER_BYTES: Final = 65_536
# The limit for all cached queries and responses, and an estimate of the overhead of an entry.
_MAX_CACHED_BYTES: Final = 16 * 1024 * 1024
_ENTRY_BYTES: Final = 512
_MAX_OPAQUE: Final = b"2147483647"
_ROUTE_RULE: Final = RULES[RequestCode.GET_ROUTEINFO_BY_TOPIC]


class _Answer(NamedTuple):
    """A response frame: the bytes around the opaque's digits, and its lengths without them."""

    frame_bytes: int
    header_bytes: int
    before: bytes
    after: bytes


class RouteResponseCache:
    """A frame hook for the server. ``generation`` changes when cached responses are outdated."""

    def __init__(
        self,
        get_route: Callable[[RemotingCommand, Connection], RemotingCommand],
        generation: Callable[[], int],
        gate: Gate,
    ) -> None:
        self._get_route = get_route
        self._generation = generation
        self._gate = gate
        self._cached_generation = -1
        self._cached_bytes = 0
        self._answers: dict[tuple[bytes, bytes], _Answer] = {}

    def answer(self, connection: Connection, frames: list[memoryview]) -> list[memoryview]:
        """Answer leading route queries; return all frames from the first other request on."""
        if self._gate.room(_ROUTE_RULE) < len(frames):
            return frames
        generation = self._generation()
        if generation != self._cached_generation:
            self._clear()
            self._cached_generation = generation
        for position, frame in enumerate(frames):
            if connection.is_paused or len(frame) > _MAX_QUERY_BYTES:
                return frames[position:]
            data = bytes(frame)
            before, _, rest = data.partition(_MARK)
            digits, _, after = rest.partition(b",")
            answer = self._answers.get((before, after))
            if answer is None or not _is_opaque(digits):
                if not self._answer_and_cache(connection, data, (before, after)):
                    return frames[position:]
                continue
            size = len(digits)
            connection.send_encoded(
                b"%b%b%b%b"
                % (
                    _PREFIX.pack(answer.frame_bytes + size, answer.header_bytes + size),
                    answer.before,
                    digits,
                    answer.after,
                )
            )
        return []

    def _answer_and_cache(
        self, connection: Connection, data: bytes, query: tuple[bytes, bytes]
    ) -> bool:
        """Handle a route query and cache the response; False if this is another request."""
        if _QUERY not in query[0] or data.count(b"opaque") != 1:
            return False
        request = decode_frame(memoryview(data))
        if (
            request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC
            or request.flag
            or request.serialize_type != SerializeType.JSON
        ):
            return False
        try:
            answer = self._get_route(request, connection)
        except (ResponseError, ProtocolError) as error:
            answer = error_response(request, error)
        if answer.code == ResponseCode.SUCCESS and len(answer.body) <= _MAX_ANSWER_BYTES:
            self._store(query, answer)
        connection.respond(answer)
        return True

    def _store(self, query: tuple[bytes, bytes], answer: RemotingCommand) -> None:
        head = encode_head(answer, len(answer.body))
        before, mark, rest = head[_PREFIX.size :].partition(_MARK)
        digits, comma, after = rest.partition(b",")
        size_bytes = sum(map(len, query)) + len(head) + len(answer.body) + _ENTRY_BYTES
        if self._cached_bytes + size_bytes > _MAX_CACHED_BYTES:
            self._clear()
        self._cached_bytes += size_bytes
        self._answers[query] = _Answer(
            frame_bytes=len(head) - 4 + len(answer.body) - len(digits),
            header_bytes=len(head) - _PREFIX.size - len(digits),
            before=before + mark,
            after=comma + after + bytes(answer.body),
        )

    def _clear(self) -> None:
        self._answers.clear()
        self._cached_bytes = 0


def _is_opaque(digits: bytes) -> bool:
    """Whether these bytes are a valid opaque that is not negative (negative ones are rare)."""
    size = len(digits)
    return (
        digits.isdigit()
        and (size < len(_MAX_OPAQUE) or (size == len(_MAX_OPAQUE) and digits <= _MAX_OPAQUE))
        and (size == 1 or digits[0] != 0x30)
    )
