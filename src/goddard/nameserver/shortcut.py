"""The short way for route queries: the same question, byte for byte, gets the same answer.

A client asks for a route again and again, and only the opaque differs from one time to the next.
So an answered query is kept as what stands before and after its opaque, with the answer in the same
two pieces; the next one is answered by a lookup, without decoding or encoding anything.

Sound because: the key is every byte of the frame but the opaque's digits; a header in which
``opaque`` occurs twice, or not as a plain number, goes the long way; only answers of success are
kept; and whatever changes a route, the order settings or the configuration empties the table, by
the generation of the encoded routes. JSON headers only; the binary ones go the long way.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from goddard.errors import ProtocolError
from goddard.protocol.codes import RequestCode, ResponseCode, SerializeType
from goddard.protocol.frame import RemotingCommand, decode_frame, encode_head
from goddard.protocol.responses import ResponseError
from goddard.transport.connection import Connection
from goddard.transport.handlers import error_response

_PREFIX: Final = Struct(">iI")
_MARK: Final = b'"opaque":'
_QUERY: Final = b'"code":%d,' % RequestCode.GET_ROUTEINFO_BY_TOPIC
_MAX_QUERY_BYTES: Final = 2_048
_MAX_ANSWER_BYTES: Final = 65_536
# Of all kept queries and answers together, and a guess at what each costs beside its bytes.
_MAX_KEPT_BYTES: Final = 16 * 1024 * 1024
_ENTRY_BYTES: Final = 512
_MAX_OPAQUE: Final = b"2147483647"


class _Answer(NamedTuple):
    """A frame in pieces: what is around the opaque's digits, and its lengths without them."""

    frame_bytes: int
    header_bytes: int
    before: bytes
    after: bytes


class RouteShortcut:
    """A frame hook for the server. ``generation`` changes when any kept answer may be wrong."""

    def __init__(
        self,
        get_route: Callable[[RemotingCommand, Connection], RemotingCommand],
        generation: Callable[[], int],
    ) -> None:
        self._get_route = get_route
        self._generation = generation
        self._kept_generation = -1
        self._kept_bytes = 0
        self._answers: dict[tuple[bytes, bytes], _Answer] = {}

    def take(self, connection: Connection, frames: list[memoryview]) -> list[memoryview]:
        """Answer the queries that come first; from the first other request on, all go back."""
        generation = self._generation()
        if generation != self._kept_generation:
            self._forget()
            self._kept_generation = generation
        for position, frame in enumerate(frames):
            if connection.is_paused or len(frame) > _MAX_QUERY_BYTES:
                return frames[position:]
            data = bytes(frame)
            before, _, rest = data.partition(_MARK)
            digits, _, after = rest.partition(b",")
            answer = self._answers.get((before, after))
            if answer is None or not _is_opaque(digits):
                if not self._learn(connection, data, (before, after)):
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

    def _learn(self, connection: Connection, data: bytes, query: tuple[bytes, bytes]) -> bool:
        """Answer a query the long way and keep the answer; False when this is no such query."""
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
            self._keep(query, answer)
        connection.respond(answer)
        return True

    def _keep(self, query: tuple[bytes, bytes], answer: RemotingCommand) -> None:
        head = encode_head(answer, len(answer.body))
        before, mark, rest = head[_PREFIX.size :].partition(_MARK)
        digits, comma, after = rest.partition(b",")
        size_bytes = sum(map(len, query)) + len(head) + len(answer.body) + _ENTRY_BYTES
        if self._kept_bytes + size_bytes > _MAX_KEPT_BYTES:
            self._forget()
        self._kept_bytes += size_bytes
        self._answers[query] = _Answer(
            frame_bytes=len(head) - 4 + len(answer.body) - len(digits),
            header_bytes=len(head) - _PREFIX.size - len(digits),
            before=before + mark,
            after=comma + after + bytes(answer.body),
        )

    def _forget(self) -> None:
        self._answers.clear()
        self._kept_bytes = 0


def _is_opaque(digits: bytes) -> bool:
    """Whether these bytes are a number that JSON and the protocol allow; negative ones are rare."""
    size = len(digits)
    return (
        digits.isdigit()
        and (size < len(_MAX_OPAQUE) or (size == len(_MAX_OPAQUE) and digits <= _MAX_OPAQUE))
        and (size == 1 or digits[0] != 0x30)
    )
