"""Messages as an acting master sends them to another broker."""

import pytest

from goddard.broker.sending.escape import as_due, as_new_half
from goddard.broker.sending.message_rules import NewMessage
from goddard.protocol.record import Host

PLACE = {"REAL_TOPIC": "T", "REAL_QID": "3"}


def message(properties: dict[str, str], sys_flag: int = 0) -> NewMessage:
    return NewMessage(
        topic="SYSTEM",
        queue_id=0,
        body=b"x",
        born_timestamp_ms=1,
        born_host=Host.parse("127.0.0.1:1"),
        properties=properties,
        sys_flag=sys_flag,
        reconsume_times=2,
    )


def test_a_due_message_is_not_delayed_again_and_no_half() -> None:
    due = as_due(message({"DELAY": "3", "TRAN_MSG": "true", "color": "red", **PLACE}, 0x38))
    assert due is not None
    assert (due.topic, due.queue_id, due.reconsume_times) == ("T", 3, 2)
    assert due.properties == {"color": "red"}
    assert due.sys_flag == 0x8  # addresses are those of the other broker


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"REAL_TOPIC": "T"},
        {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX", "REAL_QID": "0"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
    ],
)
def test_a_delayed_message_without_a_topic_is_none(properties: dict[str, str]) -> None:
    assert as_due(message(properties)) is None


def test_a_half_is_sent_as_by_its_producer() -> None:
    own = {"PGROUP": "P", "TRANSACTION_CHECK_TIMES": "2"}
    half = as_new_half(message({**own, "TRAN_PREPARED_QUEUE_OFFSET": "7", **PLACE}))
    assert half is not None
    assert (half.topic, half.queue_id, half.sys_flag) == ("T", 3, 0x4)
    assert half.properties == {**own, "TRAN_MSG": "true"}
    assert as_new_half(message({})) is None
