"""A pull that is being served: what it asks for, and how its response is encoded."""

from typing import TYPE_CHECKING, Final, TypeAlias

from goddard.protocol.codes import CommandFlag, ResponseCode, SerializeType
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import PullRequest, PullResponse
from goddard.protocol.templates import ResponseTemplate
from goddard.store.log.reading import FoundMessages, GetResult, GetStatus
from goddard.transport.connection import Connection

if TYPE_CHECKING:
    from goddard.core.pulls import Pull

_RESPONSE: Final = int(CommandFlag.RESPONSE)
_FOUND: Final = int(ResponseCode.SUCCESS)
# The response with messages; its fields are those of PullResponse that are never left out.
_FOUND_TEMPLATE: Final = ResponseTemplate(
    _FOUND,
    GetStatus.FOUND.value,
    {
        "suggestWhichBrokerId": None,
        "nextBeginOffset": None,
        "minOffset": None,
        "maxOffset": None,
        "topicSysFlag": None,
        "groupSysFlag": None,
    },
)
# Longer ones are checked against the limit of frames.
_MAX_TEMPLATE_BYTES: Final = 1 << 20

# What a pull asks for. A plain one, read by compiled code, has the same attributes.
PullFields: TypeAlias = "PullRequest | Pull"


class PullCall:
    """A pull and where its response goes; ``is_plain`` if compiled code has read it."""

    __slots__ = (
        "code",
        "connection",
        "fields",
        "is_plain",
        "is_warm",
        "opaque",
        "serialize_type",
    )

    def __init__(
        self,
        code: int,
        opaque: int,
        serialize_type: SerializeType,
        fields: PullFields,
        connection: Connection,
        *,
        is_plain: bool = False,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.serialize_type = serialize_type
        self.fields = fields
        self.connection = connection
        self.is_plain = is_plain
        self.is_warm = False  # whether a thread has read the messages into the page cache

    def reply(
        self,
        code: int,
        remark: str,
        ext_fields: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        return RemotingCommand(
            code=code,
            ext_fields=ext_fields or {},
            body=body,
            opaque=self.opaque,
            flag=_RESPONSE,
            remark=remark,
            serialize_type=self.serialize_type,
        )

    def answer(
        self,
        code: int,
        remark: str,
        result: FoundMessages,
        broker_id: int,
        topic_flag: int,
        group_flag: int,
    ) -> RemotingCommand | None:
        """The response with what was found; None if it is sent already."""
        connection = self.connection
        if not isinstance(result, GetResult):
            if not connection.is_closed:
                connection.send_encoded(
                    result.answer(
                        self.serialize_type is SerializeType.JSON,
                        self.opaque,
                        code,
                        remark.encode(),
                        broker_id,
                        topic_flag,
                        group_flag,
                    )
                )
            return None
        if code == _FOUND and result.total_bytes <= _MAX_TEMPLATE_BYTES:
            if not connection.is_closed:
                values = (
                    str(broker_id),
                    str(result.next_offset),
                    str(result.min_offset),
                    str(result.max_offset),
                    str(topic_flag),
                    str(group_flag),
                )
                head = _FOUND_TEMPLATE.head(
                    self.serialize_type, self.opaque, values, result.total_bytes
                )
                connection.send_encoded(b"".join((head, *result.pieces)))
            return None
        header = PullResponse(
            suggest_which_broker_id=broker_id,
            next_begin_offset=result.next_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
            topic_sys_flag=topic_flag,
            group_sys_flag=group_flag,
        )
        return self.reply(code, remark, header.encode(), b"".join(result.pieces))
