"""The inner parts of clients, for tests that do what the session does."""

from typing import Any, cast

from goddard.client.consume.consumer import GroupConsumer
from goddard.client.members import ConsumerMember
from goddard.client.produce.producer import Producer
from goddard.client.produce.running import RunningProducer
from goddard.client.session import Session


def member_of(consumer: GroupConsumer[Any]) -> ConsumerMember:
    """The member of a consumer that runs."""
    member = vars(consumer)["_member"]
    assert member is not None
    return cast("ConsumerMember", member)


def session_of(producer: Producer) -> Session:
    """The session of a producer that runs."""
    return cast("RunningProducer", vars(producer)["_running"]).session
