"""Locks on queues: which consumer of a group may read a queue in order.

A lock lives 60 seconds, unless configured otherwise, and is renewed by locking again; holders that
vanish, or hand a queue over without unlocking, thus lose it by themselves. ``QueueLocks`` knows no
clock and does no I/O; time is an argument. ``QueueLockRequests`` answers 41 (lock) and 42 (unlock).
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from goddard.clock import Clock, SystemClock
from goddard.protocol.bodies import MessageQueue, decode_body, encode_body
from goddard.protocol.bodies_client import LockQueuesAnswer, LockQueuesBody
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.responses import InvalidParameterError
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

_log = logging.getLogger(__name__)

LOCK_LIFE_MS: Final = 60_000
# No cluster has as many queues; locks cost memory until they expire.
MAX_LOCKS: Final = 1_000_000
_MAX_QUEUES_PER_REQUEST: Final = 65_536
_MAX_NAME_CHARS: Final = 255
# Read slowly, and on the loop; real clients lock in plain JSON.
_MAX_DIALECT_BYTES: Final = 128 * 1024


class _Lock(NamedTuple):
    client_id: str
    renewed_ms: int


class QueueLocks:
    """Group, then queue, to the client that holds it. Times are of one monotonic clock."""

    __slots__ = ("_count", "_groups", "_life_ms")

    def __init__(self, life_ms: int = LOCK_LIFE_MS) -> None:
        self._life_ms = life_ms
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Locks that are remembered, expired ones among them."""
        return self._count

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Lock or renew; returns those that the client now holds."""
        locks = self._groups.get(group, {})
        locked = []
        for queue in dict.fromkeys(queues):
            held = locks.get(queue)
            if held is None:
                if self._count >= MAX_LOCKS:
                    continue
                self._count += 1
            elif held.client_id != client_id and now_ms - held.renewed_ms <= self._life_ms:
                continue
            locks[queue] = _Lock(client_id, now_ms)
            locked.append(queue)
        if locks:
            self._groups[group] = locks
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> int:
        """Give back what the client holds of these queues, and say how many; others' locks stay."""
        locks = self._groups.get(group)
        if locks is None:
            return 0
        released = 0
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                del locks[queue]
                released += 1
        self._count -= released
        if not locks:
            del self._groups[group]
        return released

    def holder(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        """The client that holds a queue."""
        held = self._groups.get(group, {}).get(queue)
        if held is None or now_ms - held.renewed_ms > self._life_ms:
            return None
        return held.client_id

    def is_any_held(self, group: str, now_ms: int) -> bool:
        """Whether some consumer of the group reads in order at present."""
        locks = self._groups.get(group)
        if locks is None:
            return False
        return any(now_ms - held.renewed_ms <= self._life_ms for held in locks.values())

    def expire(self, now_ms: int) -> None:
        """Forget locks that nobody renewed."""
        for group, locks in list(self._groups.items()):
            kept = {
                queue: held
                for queue, held in locks.items()
                if now_ms - held.renewed_ms <= self._life_ms
            }
            self._count -= len(locks) - len(kept)
            if kept:
                self._groups[group] = kept
            else:
                del self._groups[group]


class QueueLockRequests:
    """Codes 41 and 42. ``scan`` is to be called now and then.

    ``on_released`` is called with a group of which queues became free. Java's broker tells nobody,
    so that a queue that changes hands lies idle until its new reader's next try, 20 s at most.
    """

    def __init__(self, *, life_ms: int = LOCK_LIFE_MS, clock: Clock | None = None) -> None:
        self.locks = QueueLocks(life_ms)
        self.on_released: Callable[[str], None] | None = None
        self._clock = clock or SystemClock()

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.LOCK_BATCH_MQ: self.handle_lock,
            RequestCode.UNLOCK_BATCH_MQ: self.handle_unlock,
        }

    def handle_lock(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        body = _read(request)
        now_ms = self._clock.monotonic_ms()
        locked = self.locks.lock(body.consumer_group, body.client_id, body.mq_set, now_ms)
        if len(locked) < len(set(body.mq_set)):
            _log.info(
                "%s of group %s got %d of %d queues locked, the others are held",
                body.client_id,
                body.consumer_group,
                len(locked),
                len(body.mq_set),
            )
        return request.reply(body=encode_body(LockQueuesAnswer(locked=locked)))

    def handle_unlock(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        body = _read(request)
        released = self.locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        if released and self.on_released is not None:
            self.on_released(body.consumer_group)
        return request.reply()

    def is_any_held(self, group: str) -> bool:
        """Whether some consumer of the group reads in order now."""
        return self.locks.is_any_held(group, self._clock.monotonic_ms())

    def scan(self) -> None:
        self.locks.expire(self._clock.monotonic_ms())


def _read(request: RemotingCommand) -> LockQueuesBody:
    # onlyThisBroker is for replicated brokers that lock by quorum; alone, every lock is local.
    body = decode_body(request.body, LockQueuesBody, max_dialect_bytes=_MAX_DIALECT_BYTES)
    if len(body.mq_set) > _MAX_QUEUES_PER_REQUEST:
        raise InvalidParameterError(f"one request locks {_MAX_QUEUES_PER_REQUEST} queues at most")
    for name in (body.consumer_group, body.client_id):
        if not name or len(name) > _MAX_NAME_CHARS:
            raise InvalidParameterError("consumerGroup and clientId are needed to lock queues")
    if any(
        len(queue.topic) > _MAX_NAME_CHARS or len(queue.broker_name) > _MAX_NAME_CHARS
        for queue in body.mq_set
    ):
        raise InvalidParameterError("the name of a topic or broker is too long")
    return body
