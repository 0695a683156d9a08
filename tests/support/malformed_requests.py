"""Malformed requests: every field of every header missing, of a wrong type or out of range.

``malformed_requests`` starts from a valid request and changes one field at a time, so that the
checks of the other fields do not hide the effect.
"""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Final

from goddard.protocol.codes import CommandFlag, RequestCode, SerializeType
from goddard.protocol.frame import RemotingCommand
from tests.support.headers import REQUEST_HEADERS

MALFORMED_VALUES: Final = (
    "",
    "x",
    "-1",
    "0",
    "2147483647",
    "-2147483648",
    "2147483648",
    str(2**63 - 1),
    str(-(2**63)),
    str(2**63),
    "9" * 400,
    "1.5",
    " 7",
    "\uff17",
    "\x00",
    "null",
    "true",
    "{}",
    "../../../../etc/passwd",
    "no-such-thing",
    "%RETRY%",
    "%DLQ%no-such-group",
    "SCHEDULE_TOPIC_XXXX",
    "\U0001f600" * 100,
    "a\x01b\x02" * 50,
    "v" * 40_000,
)
MALFORMED_BODIES: Final = (
    b"\x00",
    b"\xff" * 64,
    b"{",
    b"{}",
    b"[]",
    b"null",
    b"7",
    b'"text"',
    b"[" * 100_000,
    b'{"a":' * 1_000 + b"1" + b"}" * 1_000,
    b'{"clientID":7,"consumerDataSet":[null,{"groupName":[]}],"producerDataSet":{"a":1}}',
    b'{"clientID":null,"consumerGroup":null,"mqSet":[null,{"queueId":"x"},{"queueId":1e400}]}',
    b'{"topicConfigList":[null,{"topicName":7,"perm":"x","readQueueNums":1e300}]}',
    b'{"groupConfigList":[{"groupName":null,"retryMaxTimes":99999999999999999999}]}',
    b'{"groupName":"' + b"g" * 300 + b'","retryQueueNums":-5}',
    b'{"offsetTable":[[{"queueId":null},-9223372036854775809]]}',
    b"=\n\\u00\nbrokerPermission=\\uZZZZ\n",
    b"x" * 1_000_000,
)

_TEXTS: Final = {
    "topic": "Swept",
    "b": "Swept",
    "c": "TBW102",
    "defaultTopic": "TBW102",
    "expressionType": "TAG",
    "topicFilterType": "SINGLE_TAG",
    "attributes": "",
    "properties": "",
    "i": "",
    "subscription": "*",
    "msgId": "7F00000100002A9F0000000000000000",
    "statsName": "TOPIC_PUT_NUMS",
}
_NUMBERS: Final = {
    "queueId": "0",
    "e": "0",
    "sysFlag": "4",
    "perm": "6",
    "maxMsgNums": "32",
    "maxNum": "32",
    "d": "4",
    "defaultTopicQueueNums": "4",
    "commitOrRollback": "8",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "suspendTimeoutMillis": "50",
    "beginTimestamp": "0",
    "endTimestamp": str(2**62),
}


def plausible_fields(code: int) -> dict[str, str]:
    """Every field of a code's header with a value that is valid for its type."""
    header = REQUEST_HEADERS.get(RequestCode(code))
    if header is None:
        return {}
    fields: dict[str, str] = {}
    hints = typing.get_type_hints(header)
    for field, name in header.wire_names().items():
        kinds = typing.get_args(hints[field]) or (hints[field],)
        if bool in kinds:
            fields[name] = "false"
        elif int in kinds:
            fields[name] = _NUMBERS.get(name, "0")
        else:
            fields[name] = _TEXTS.get(name, "G")
    return fields


def malformed_requests(code: int) -> Iterator[RemotingCommand]:
    """All malformed requests for one code; none of them is one-way."""
    valid = plausible_fields(code)
    yield RemotingCommand(code)
    yield RemotingCommand(code, valid)
    yield RemotingCommand(code, valid, serialize_type=SerializeType.ROCKETMQ)
    for name in valid:
        without = {other: value for other, value in valid.items() if other != name}
        yield RemotingCommand(code, without, b"body")
        for value in MALFORMED_VALUES:
            yield RemotingCommand(code, valid | {name: value}, b"body")
    for value in MALFORMED_VALUES[:20]:
        yield RemotingCommand(code, dict.fromkeys(valid, value), b"body")
        yield RemotingCommand(
            code, dict.fromkeys(valid, value), serialize_type=SerializeType.ROCKETMQ
        )
    for body in MALFORMED_BODIES:
        yield RemotingCommand(code, valid, body)
        yield RemotingCommand(code, {}, body)


def one_way(request: RemotingCommand) -> RemotingCommand:
    return dataclasses.replace(request, flag=request.flag | CommandFlag.ONEWAY)
