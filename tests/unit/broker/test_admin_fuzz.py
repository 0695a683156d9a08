"""Every administration request with missing, mistyped and absurd fields and bodies.

Whatever comes is answered, and by a decision: an exception that no handler expected would be in
the log.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.admin import clients as admin_clients
from goddard.protocol.codes import RequestCode
from tests.support.admin_harness import AdminHarness
from tests.support.consumer_harness import tags
from tests.support.headers import REQUEST_HEADERS

CODES = (
    12, 17, 18, 21, 25, 26, 28, 33, 43, 45, 200, 201, 202, 203, 204, 207, 208, 215, 222, 223, 225,
    300, 303, 305, 306, 307, 308, 309, 314, 315, 316, 317, 321, 328, 329, 343, 345, 351, 352, 353,
    402,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    "",
    " ",
    "x",
    "null",
    "true",
    "0",
    "-1",
    str(2**31 - 1),
    str(-(2**31)),
    str(2**63 - 1),
    str(-(2**63)),
    "9" * 100,
    "1.5",
    "T",
    "G",
    "%RETRY%G",
    "../../etc/passwd",
    "a@b@c",
    "\x00\x01\x02",
    "\u2603" * 300,
    "T" * 40_000,
)
BODIES = (
    b"",
    b"{",
    b"{}",
    b"[]",
    b"null",
    b"1",
    b'"x"',
    b"\xff" * 100,
    b"[" * 5_000,
    b'{"topicConfigList":null,"groupConfigList":null}',
    b'{"topicConfigList":[null],"groupConfigList":[null]}',
    b'{"topicConfigList":[{}],"groupConfigList":[{}]}',
    b'{"groupName":null}',
    b'{"groupName":"G","attributes":{"+x":null}}',
    b"=",
    b"\\",
    b"=\n" * 1000,
    b"a" * 100_000,
)


GOOD = {"topic": "T", "group": "G", "consumerGroup": "G", "timestamp": "0", "queueId": "0"}


def field_names(code: int) -> list[str]:
    header = REQUEST_HEADERS.get(RequestCode(code))
    return [] if header is None else list(header.wire_names().values())


def requests(code: int) -> Iterator[tuple[dict[str, str], bytes]]:
    names = field_names(code)
    good = {name: GOOD.get(name, "0") for name in names}
    for body in BODIES:
        yield {}, body
        yield good, body
    for value in VALUES:
        yield dict.fromkeys(names, value), b""
    for name in names:
        for value in VALUES:
            yield {**good, name: value}, b""


@pytest.mark.parametrize("code", CODES)
async def test_absurd_requests_are_answered(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    monkeypatch.setattr(admin_clients, "_STATUS_MS", 1)  # the consumer does not answer
    caplog.set_level(logging.ERROR, "goddard.transport")
    with AdminHarness(tmp_path) as harness:
        harness.add_topic("T")
        harness.put("T", b"1", keys="k")
        harness.offsets.commit("G", "T", 0, 1, "")
        harness.figures.put("T", 1, 1)
        await harness.connect().heartbeat("G", tags("T"))
        topics, groups = len(harness.topics), len(harness.groups)
        admin = harness.connect()
        count = 0
        for fields, body in requests(code):
            answer = await admin.ask(code, fields, body)
            assert answer.code in (0, 1, 16, 17, 22, 26, 29, 206, 207), (fields, body)
            assert len(answer.remark or "") < 2_000
            count += 1
        assert count > 20
        unexpected = [each for each in caplog.records if each.name == "goddard.transport"]
        assert not unexpected, unexpected[0].getMessage()
        # Topics with legal names may have been created; nothing else.
        assert len(harness.topics) - topics <= len(VALUES)
        assert len(harness.groups) - groups <= len(VALUES)
