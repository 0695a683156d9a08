"""Which broker is suggested to a consumer: this one, or the first slave when it lags."""

from pathlib import Path

import pytest

from goddard.protocol.codes import RequestCode
from tests.support.consumer_harness import ConsumerHarness, pull_fields


@pytest.mark.parametrize(("is_readable", "suggested"), [("true", "1"), ("false", "0")])
async def test_only_the_first_slave_is_suggested(
    tmp_path: Path, is_readable: str, suggested: str
) -> None:
    properties = {"slaveReadEnable": is_readable}
    with ConsumerHarness(tmp_path, properties=properties, memory_bytes=3000) as harness:
        harness.add_topic("T")
        harness.put("T", *[bytes(900)] * 30)
        consumer = harness.connect()
        lagging = await consumer.ask(RequestCode.PULL_MESSAGE, pull_fields("T", 0))
        assert lagging.fields["suggestWhichBrokerId"] == suggested
        close = await consumer.ask(RequestCode.PULL_MESSAGE, pull_fields("T", 29))
        assert close.fields["suggestWhichBrokerId"] == "0"
