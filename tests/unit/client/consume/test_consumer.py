"""Members of a session: what heartbeats say about them, and when they take part."""

import pytest

from goddard.client.consume.lite import LiteMember, Mode, Reading
from goddard.client.consume.options import LiteOptions, PushOptions
from goddard.client.consume.push import PushMember
from goddard.client.consume.subscriptions import Subscriptions
from goddard.client.options import session_options
from goddard.client.session import Session
from goddard.client.values import ConsumeFrom, MessageModel, MessageQueue
from goddard.environment import Environment
from goddard.protocol.bodies import ConsumeFromWhere, ConsumeType

QUEUE = MessageQueue("space%T", "b", 0)


@pytest.fixture
async def session() -> Session:
    """One that is not started: nobody is connected to."""
    options = session_options("127.0.0.1:1", {"namespace": "space", "unit_mode": True})
    return Session(options, environment=Environment())


def listener(messages: object, context: object) -> None: ...


async def test_heartbeats_of_a_push_consumer(session: Session) -> None:
    subscriptions = Subscriptions()
    subscriptions.set("space%T", "A || B", 1)
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    member = PushMember(session, "space%G", options, subscriptions, listener)
    data = member.consumer_data()
    assert (data.group_name, data.consume_type) == ("space%G", ConsumeType.PASSIVELY)
    assert data.consume_from_where is ConsumeFromWhere.FIRST_OFFSET
    assert (data.message_model, data.unit_mode) == (MessageModel.CLUSTERING, True)
    (wanted,) = data.subscription_data_set
    assert (wanted.topic, wanted.tags_set) == ("space%T", ["A", "B"])
    assert list(member.subscribed_topics()) == ["space%T"]


async def test_heartbeats_of_a_lite_consumer(session: Session) -> None:
    reading = Reading()
    member = LiteMember(session, "space%G", LiteOptions(), reading)
    reading.mode = Mode.SUBSCRIBE
    reading.subscriptions.set("space%T", "A || B", 1)
    data = member.consumer_data()
    assert (data.group_name, data.consume_type) == ("space%G", ConsumeType.ACTIVELY)
    (wanted,) = data.subscription_data_set
    assert (wanted.topic, wanted.tags_set) == ("space%T", ["A", "B"])
    assert list(member.subscribed_topics()) == ["space%T"]


async def test_assigned_queues_do_not_concern_the_group(session: Session) -> None:
    reading = Reading()
    member = LiteMember(session, "space%G", LiteOptions(), reading)
    reading.mode = Mode.ASSIGN
    reading.queues = {QUEUE, QUEUE._replace(queue_id=1)}
    reading.subscriptions.set("space%T", "A", 1)
    assert member.consumer_data().subscription_data_set == []
    # Their routes are kept fresh.
    assert list(member.subscribed_topics()) == ["space%T"]


async def test_a_member_that_has_not_joined_does_not_rebalance(session: Session) -> None:
    subscriptions = Subscriptions()
    subscriptions.set("space%T", "*", 1)
    member = PushMember(session, "space%G", PushOptions(), subscriptions, listener)
    # There is no name server to ask.
    assert await member.rebalance()
    await member.persist_offsets()
    assert member.assignment.owned == {}
