"""A response from a template has the bytes that ``encode_frame`` makes."""

import pytest

from goddard.protocol.codes import CommandFlag, SerializeType
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.templates import ResponseTemplate

TEXTS = ["0", "", "%d", '"queueId":""', "ü€😀", "back\\slash\n", "x" * 300]


@pytest.mark.parametrize("kind", SerializeType)
@pytest.mark.parametrize("remark", [None, "FOUND", '100 % "sure"'])
@pytest.mark.parametrize("text", TEXTS)
def test_a_template_gives_the_bytes_of_a_frame(
    kind: SerializeType, remark: str | None, text: str
) -> None:
    fields = {"queueId": text, "MSG_REGION": "50% ü", "a%b": text + "2", "last": "const"}
    template = ResponseTemplate(
        10, remark, fields | {"queueId": None, "a%b": None, "MSG_REGION": "50% ü"}
    )
    for opaque in (0, 7, -1, 0x7FFFFFFF):
        for body in (b"", b"body"):
            expected = encode_frame(
                RemotingCommand(
                    10,
                    fields,
                    body,
                    opaque=opaque,
                    flag=CommandFlag.RESPONSE,
                    remark=remark,
                    serialize_type=kind,
                )
            )
            head = template.head(kind, opaque, (text, text + "2"), len(body))
            assert head + body == expected
