"""Pulling messages without a group of their own, for verbs that print them."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from goddard.client.consume.pull import Puller, PullResult, PullStatus
from goddard.client.consume.subscriptions import subscription
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

_GROUP: Final = "TOOLS_CONSUMER"
PAGE: Final = 32


async def pull_page(
    admin: "Admin",
    queue: MessageQueue,
    offset: int,
    *,
    tags: str = "*",
    max_messages: int = PAGE,
    group: str = _GROUP,
) -> PullResult:
    """Up to a page of messages from an offset on; nothing is committed."""
    return await Puller(admin.session, group).pull(
        queue,
        offset,
        subscription(queue.topic, tags, version_ms=0),
        max_messages=min(max_messages, PAGE),
        suspend_ms=0,
        timeout_ms=admin.timeout_ms,
        carries_subscription=True,
    )


async def pull_range(
    admin: "Admin",
    queue: MessageQueue,
    begin: int,
    end: int,
    *,
    tags: str = "*",
    group: str = _GROUP,
) -> AsyncIterator[PullResult]:
    """Pages from an offset to another, which is not included, or to the end of the queue.

    A page that has nothing because of the tags is yielded too; the last one may be empty.
    """
    offset = begin
    while offset < end:
        page = await pull_page(
            admin, queue, offset, tags=tags, max_messages=end - offset, group=group
        )
        yield page
        is_at_end = page.status in (PullStatus.NO_NEW_MESSAGES, PullStatus.OFFSET_ILLEGAL)
        if is_at_end or page.next_offset <= offset:
            return
        offset = page.next_offset


def with_offsets(one: ReceivedMessage, page: PullResult) -> dict[str, str]:
    """The properties of a message, with those that Java's client adds when it pulls."""
    ends = {"MIN_OFFSET": str(page.min_offset), "MAX_OFFSET": str(page.max_offset)}
    return dict(one.properties) | ends
