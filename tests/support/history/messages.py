"""What producers and consumers saw: invariants of a message queue."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from goddard.client.consume.queue_buffer import LOCK_VALID_MS
from tests.support.history.record import Decision, Delivery, History, Outcome, Queue, Send


def check_messages(history: History) -> list[str]:
    """The invariants 1 to 6 and 12 to 14."""
    return [
        *_lost(history),
        *_two_values_at_one_offset(history),
        *_unsent_or_refused(history),
        *_gaps(history),
        *_order(history),
        *_copies(history),
        *_committed_offsets(history),
        *_delivered_at_least_once(history),
        *_early(history),
        *_two_owners(history),
    ]


def _lost(history: History) -> Iterator[str]:
    """1: acknowledged messages are there, as promised; of a transaction, if it was committed."""
    values = {stored.value for stored in history.stored}
    for send in history.sends:
        is_due = send.decision is Decision.COMMITTED
        if is_due and send.value not in values and history.is_promised(send):
            yield f"lost: {send.value} of {send.producer}, acknowledged at {_place(send)}"


def _two_values_at_one_offset(history: History) -> Iterator[str]:
    """2: an offset stands for one value, whoever was told so, and always."""
    seen: dict[tuple[Queue, int], tuple[str, str]] = {}
    claims: list[tuple[Queue, int, str, str]] = [
        (stored.queue, stored.offset, stored.value, "stored") for stored in history.stored
    ]
    claims += [
        (send.queue, send.offset, send.value, "acknowledged")
        for send in history.sends
        if send.queue is not None
        and history.is_promised(send)
        and not send.delay_seconds
        and not send.is_transactional
    ]
    claims += [
        (delivery.queue, delivery.offset, delivery.value, f"read by {delivery.member}")
        for delivery in history.deliveries
        if not history.lost_disk(delivery.queue.broker)
    ]
    for queue, offset, value, how in claims:
        other = seen.setdefault((queue, offset), (value, how))
        if other[0] != value:
            yield f"two values at {queue} {offset}: {other[0]} {other[1]}, {value} {how}"


def _unsent_or_refused(history: History) -> Iterator[str]:
    """3: what is read was sent and not refused; what was rolled back is never read."""
    sends = {send.value: send for send in history.sends}
    for value in dict.fromkeys(
        [stored.value for stored in history.stored]
        + [delivery.value for delivery in history.deliveries]
    ):
        send = sends.get(value)
        if send is None:
            yield f"never sent: {value!r:.80}"
        elif send.outcome is Outcome.REFUSED:
            yield f"refused, but stored: {value}"
        elif send.decision is Decision.ROLLED_BACK:
            yield f"rolled back, but visible: {value}"


def _gaps(history: History) -> Iterator[str]:
    """4: the offsets of a queue are contiguous up to its end."""
    offsets: dict[Queue, list[int]] = defaultdict(list)
    for stored in history.stored:
        offsets[stored.queue].append(stored.offset)
    for queue, found in offsets.items():
        if found != list(range(found[0], found[0] + len(found))):
            yield f"gaps or repetitions in {queue}: {_jumps(found)}"
    for queue, end in history.max_offsets.items():
        found = offsets.get(queue, [])
        if found and found[-1] + 1 != end:
            yield f"{queue} ends at {end}, its last readable message is {found[-1]}"


def _jumps(offsets: list[int]) -> str:
    pairs = pairwise(offsets)
    return ", ".join(f"{one} then {other}" for one, other in pairs if other != one + 1)


def _order(history: History) -> Iterator[str]:
    """5: messages that a producer sent to a queue one after the other are in that order."""
    first: dict[str, tuple[Queue, int]] = {}
    for stored in history.stored:
        first.setdefault(stored.value, (stored.queue, stored.offset))
    last: dict[tuple[str, Queue], tuple[int, Send]] = {}
    for send in history.sends:
        place = first.get(send.value)
        is_plain = not send.delay_seconds and not send.is_transactional
        if place is None or not is_plain or send.attempts != 1:
            continue
        key = (send.producer, place[0])
        before = last.get(key)
        if before is not None and before[0] > place[1]:
            one, other = before[1].value, send.value
            yield f"order: {other} at {place[0]} {place[1]} is before {one} at {before[0]}"
        last[key] = (place[1], send)


def _copies(history: History) -> Iterator[str]:
    """6: a message is stored at most once per attempt."""
    counts = Counter(stored.value for stored in history.stored)
    for send in history.sends:
        # Progress of deliveries and checks is saved late, so a crash can repeat them.
        is_plain = not send.delay_seconds and not send.is_transactional
        if is_plain and counts[send.value] > send.attempts:
            yield f"{counts[send.value]} copies of {send.value}, {send.attempts} attempts"


def _committed_offsets(history: History) -> Iterator[str]:
    """12: no group is ahead of a queue."""
    for (group, queue), offset in history.committed_offsets.items():
        end = history.max_offsets.get(queue)
        if end is not None and offset > end:
            yield f"{group} committed {offset} of {queue}, which ends at {end}"


def _delivered_at_least_once(history: History) -> Iterator[str]:
    """13: each group has consumed each stored message."""
    if not history.is_healed:
        return
    for group, topics in history.groups.items():
        consumed = {
            delivery.value
            for delivery in history.deliveries
            if delivery.group == group and delivery.is_success
        }
        for stored in history.stored:
            if history.lost_disk(stored.queue.broker):
                continue  # a consumer may have been ahead of the new master, and skip messages
            if stored.queue.topic in topics and stored.value not in consumed:
                yield f"{group} never consumed {stored.value} at {stored.queue} {stored.offset}"


def _early(history: History) -> Iterator[str]:
    """14: a delayed message is not delivered before its time."""
    due = {send.value: send.began + send.delay_seconds for send in history.sends}
    for delivery in history.deliveries:
        if delivery.began < due.get(delivery.value, 0.0) - 0.002 - history.clock_jumps_seconds:
            late = due[delivery.value] - delivery.began
            yield f"early by {late:.3f} s: {delivery.value}, delivered to {delivery.member}"


def _two_owners(history: History) -> Iterator[str]:
    """14: calls for one queue of an orderly group never overlap, and follow its order.

    Locks are in the memory of the master, as in RocketMQ. A new master has none, so it may give a
    queue to a second consumer while the first does not yet know that its lock has ended.
    """
    running: dict[tuple[str, Queue], Delivery] = {}
    for delivery in sorted(history.deliveries, key=lambda each: each.began):
        if delivery.group not in history.orderly_groups:
            continue
        key = (delivery.group, delivery.queue)
        before = running.get(key)
        if (
            before is not None
            and before.member != delivery.member
            and before.ended > delivery.began
            and not history.has_new_master(
                delivery.queue.broker, delivery.began, LOCK_VALID_MS / 1000
            )
        ):
            yield (
                f"two owners of {delivery.queue}: {before.member} until {before.ended:.3f}, "
                f"{delivery.member} from {delivery.began:.3f}"
            )
        if before is not None and before.member == delivery.member:
            is_next = delivery.offset <= before.offset + 1
            if not is_next and before.is_success and not history.lost_disk(delivery.queue.broker):
                yield (
                    f"{delivery.member} skipped from {before.offset} to {delivery.offset} "
                    f"of {delivery.queue}"
                )
        running[key] = delivery


def _place(send: Send) -> str:
    when = "" if send.ended is None else f" ({send.ended:.3f} s)"
    return f"{send.queue} {send.offset}{when}"
