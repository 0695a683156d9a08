"""Verbs that print many messages of a topic or of a queue."""

from collections import Counter
from typing import Final

from goddard.cli.mqadmin.call import Call
from goddard.cli.mqadmin.java_text import message_text
from goddard.cli.mqadmin.messaging.messages import check_encoding
from goddard.cli.mqadmin.messaging.offsets import time_of
from goddard.cli.mqadmin.messaging.pulling import pull_range, with_offsets
from goddard.cli.terminal.mistakes import WrongUsageError
from goddard.client.consume.pull import PullResult, PullStatus
from goddard.client.values import MessageQueue

_TOOLS_GROUP: Final = "TOOLS_CONSUMER"
_LINE: Final = "-" * 56
_AT_END: Final = (PullStatus.NO_NEW_MESSAGES, PullStatus.OFFSET_ILLEGAL)


async def print_messages(call: Call) -> None:
    options, topic = call.options, call.options.text("t")
    encoding = _encoding(call)
    with_body = options.boolean("d", True)
    queues = await call.admin.topic_queues(options.text("l", topic))
    for known in queues:
        queue = known._replace(topic=topic)
        begin, end = await _range(call, queue, "b", "e")
        call.line(f"minOffset={begin}, maxOffset={end}, {queue}")
        async for page in pull_range(call.admin, queue, begin, end, tags=options.text("s", "*")):
            print_page(call, page, encoding, with_body=with_body)
            if page.status is PullStatus.NO_MATCHED_MESSAGES:
                _print_status(call, queue, page, "no matched msg.")
            elif page.status in _AT_END:
                _print_status(call, queue, page, "print msg finished.")
        call.line(_LINE)


async def print_messages_of_queue(call: Call) -> None:
    options = call.options
    number = options.number("i", least=0)
    queue = MessageQueue(options.text("t"), options.text("a"), number)
    encoding = _encoding(call)
    is_printed, with_body = options.boolean("p"), options.boolean("d")
    counts: Counter[str] = Counter()
    begin, end = await _range(call, queue, "b", "e")
    async for page in pull_range(call.admin, queue, begin, end, tags=options.text("s", "*")):
        if is_printed:
            print_page(call, page, encoding, with_body=with_body)
        counts.update(one.tags for one in page.messages if one.tags)
    if options.boolean("f"):
        for tag, count in counts.most_common():
            call.line(f"Tag: {tag:<30} Count: {count}")


async def consume_messages(call: Call) -> None:
    options, topic = call.options, call.options.text("t")
    left = options.number("c", 128, least=1)
    if "i" in options and "b" not in options:
        raise WrongUsageError("-i (--queueId) needs -b (--brokerName)")
    if "o" in options and "i" not in options:
        raise WrongUsageError("-o (--offset) needs -i (--queueId)")
    offset = options.number("o", least=0)
    queues = [
        queue
        for queue in await call.admin.topic_queues(topic)
        if options.get("b") in (None, queue.broker_name)
        and ("i" not in options or queue.queue_id == options.number("i"))
    ]
    if not queues:
        raise WrongUsageError(f"topic {topic} has no such queue")
    for queue in queues:
        begin, end = await _range(call, queue, "s", "e")
        begin = max(begin, offset)
        if begin > end:
            call.line(f"{queue} no matched msg, offset={offset}")
        if end - begin > left:
            call.line(f"The older {left} message of the {queue.queue_id} queue will be provided")
            end = begin + left
        await _consume(call, queue, begin, end)
        left -= max(0, end - begin)
        if left <= 0:
            return


async def _consume(call: Call, queue: MessageQueue, begin: int, end: int) -> None:
    group = call.options.text("g", _TOOLS_GROUP)
    page = None
    async for page in pull_range(call.admin, queue, begin, end, group=group):
        if page.status is PullStatus.FOUND:
            call.line("Consume ok")
            print_page(call, page, "UTF-8", with_body=True)
        elif page.status is PullStatus.NO_MATCHED_MESSAGES:
            _print_status(call, queue, page, "no matched msg.")
    status = page.status if page is not None else PullStatus.NO_NEW_MESSAGES
    if status is PullStatus.FOUND:
        status = PullStatus.NO_NEW_MESSAGES
    call.line(f"{queue} print msg finished. status={status.value}, offset={max(begin, end)}")


def print_page(call: Call, page: PullResult, encoding: str, *, with_body: bool) -> None:
    for one in page.messages:
        body = one.body.decode(encoding, "replace") if with_body else "NOT PRINT BODY"
        text = message_text(one, with_offsets(one, page))
        call.line(f"MSGID: {one.message_id} {text} BODY: {body}")


def _print_status(call: Call, queue: MessageQueue, page: PullResult, what: str) -> None:
    call.line(f"{queue} {what} status={page.status.value}, offset={page.next_offset}")


def _encoding(call: Call) -> str:
    name = call.options.text("c", "UTF-8")
    check_encoding(call.options, "c", name)
    return name


async def _range(call: Call, queue: MessageQueue, begin: str, end: str) -> tuple[int, int]:
    """The offsets between the times of two options; all of the queue without them."""
    admin, options = call.admin, call.options
    now_ms = admin.clock.now_ms()
    first = await admin.min_offset(queue)
    last = await admin.max_offset(queue)
    if begin in options:
        first = await admin.search_offset(queue, time_of(options, begin, now_ms))
    if end in options:
        last = await admin.search_offset(queue, time_of(options, end, now_ms))
    return first, last
