"""A consumer as its session sees it, for tests that do what the session does."""

from typing import Any, cast

from goddard.client.consume.consumer import GroupConsumer
from goddard.client.members import ConsumerMember


def member_of(consumer: GroupConsumer[Any]) -> ConsumerMember:
    """The member of a consumer that runs."""
    member = vars(consumer)["_member"]
    assert member is not None
    return cast("ConsumerMember", member)
