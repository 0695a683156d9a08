"""A synchronous master's replicas: up to which offset enough of them have the log, and who waits.

A wait is over when so many brokers, the master included, have the log up to its end offset. There
is no thread and no task per wait: the reports of slaves move one watermark for each number of
replicas that somebody waits for, and a timer ends what takes too long.

With ``inSyncReplicas`` of 2 and more it is that number, with the answers of RocketMQ 5. With 1, the
default, one slave is needed, with the answers of 4.9: in 5 such a master waits for nobody, which an
asynchronous one does, too. Belongs to the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from goddard.errors import StoreError
from goddard.replication.decisions import acknowledged_offset, is_in_sync


class UnreplicatedError(StoreError):
    """The messages are in the log of the master, but not known to be in the logs of its slaves."""


class NoSlaveError(UnreplicatedError):
    """No slave is connected that is close enough to the end of the log."""


class SlaveTimeoutError(UnreplicatedError):
    """The slaves did not acknowledge in time; they still may."""


class NotEnoughReplicasError(StoreError):
    """Fewer replicas are in sync than a message needs; nothing was stored."""


class ReplicaPolicy(NamedTuple):
    """What a master waits for."""

    is_synchronous: bool = False
    in_sync_replicas: int = 1
    min_in_sync_replicas: int = 1
    is_auto: bool = False
    max_gap_bytes: int = 256 << 20
    timeout_ms: int = 3_000

    @property
    def replicas_per_message(self) -> int:
        """How many brokers have a message, at least, when it is acknowledged."""
        if not self.is_synchronous:
            return 1
        if self.in_sync_replicas == 1:
            return 2
        return self.min_in_sync_replicas if self.is_auto else self.in_sync_replicas


Done: TypeAlias = Callable[[StoreError | None], None]


class _Wait:
    __slots__ = ("done", "end_offset", "is_over", "timer")

    def __init__(self, end_offset: int, done: Done) -> None:
        self.end_offset = end_offset
        self.done = done
        self.is_over = False
        self.timer: asyncio.TimerHandle | None = None

    def end(self, error: StoreError | None) -> None:
        if not self.is_over:
            self.is_over = True
            if self.timer is not None:
                self.timer.cancel()
            self.done(error)


class Acknowledgements:
    """``reports`` returns what the connected slaves have acknowledged; call ``reported`` then."""

    def __init__(
        self,
        policy: Callable[[], ReplicaPolicy],
        reports: Callable[[], Sequence[int]],
        end_offset: Callable[[], int],
    ) -> None:
        self._policy = policy
        self._reports = reports
        self._end_offset = end_offset
        # By the number of replicas: up to where they have the log, and who waits, oldest first.
        self._watermarks: dict[int, int] = {}
        self._waiting: dict[int, deque[_Wait]] = {}

    @property
    def is_needed(self) -> bool:
        """Whether a message has to wait for slaves."""
        return self._policy().is_synchronous

    def refusal(self) -> NotEnoughReplicasError | None:
        """Why a message that waits for slaves must not be stored now; None if it may."""
        policy = self._policy()
        if not policy.is_synchronous:
            return None
        least = policy.min_in_sync_replicas
        current = self._in_sync(policy)
        if current >= least:
            return None
        return NotEnoughReplicasError(
            f"{current} replicas are in sync, this one included, and minInSyncReplicas={least}"
        )

    def wait(self, end_offset: int, done: Done) -> None:
        """Call ``done`` once enough replicas have the log up to an offset, or with the error."""
        policy = self._policy()
        if policy.in_sync_replicas == 1:
            needed = 2
            if self._in_sync(policy) < needed:
                done(NoSlaveError("no slave is connected that is close to the end of the log"))
                return
        else:
            needed = policy.in_sync_replicas
            if policy.is_auto:
                needed = max(policy.min_in_sync_replicas, min(needed, self._in_sync(policy)))
        if self._watermark(needed) >= end_offset:
            done(None)
            return
        wait = _Wait(end_offset, done)
        wait.timer = asyncio.get_running_loop().call_later(
            policy.timeout_ms / 1000, self._expire, wait, needed, policy.timeout_ms
        )
        self._waiting.setdefault(needed, deque()).append(wait)

    def reported(self) -> None:
        """A slave reported, or one is gone."""
        for needed, waiting in self._waiting.items():
            if not waiting:
                continue
            watermark = self._watermark(needed)
            while waiting and waiting[0].end_offset <= watermark:
                waiting.popleft().end(None)

    def restart(self) -> None:
        """The broker is no master any more: what it knew of its slaves does not count later."""
        waiting, self._waiting = self._waiting, {}
        self._watermarks.clear()
        for waits in waiting.values():
            for wait in waits:
                wait.end(SlaveTimeoutError("this broker is no longer the master"))

    @property
    def in_sync_count(self) -> int:
        """How many replicas are in sync, the master included."""
        return self._in_sync(self._policy())

    def _in_sync(self, policy: ReplicaPolicy) -> int:
        end_offset = self._end_offset()
        return 1 + sum(
            is_in_sync(offset, end_offset, policy.max_gap_bytes) for offset in self._reports()
        )

    def _watermark(self, needed: int) -> int:
        """It never falls: what a slave that is gone has acknowledged stays acknowledged."""
        reached = acknowledged_offset(needed, self._reports(), self._end_offset())
        reached = max(reached, self._watermarks.get(needed, 0))
        self._watermarks[needed] = reached
        return reached

    def _expire(self, wait: _Wait, needed: int, timeout_ms: int) -> None:
        waiting = self._waiting.get(needed)
        if waiting and wait in waiting:
            waiting.remove(wait)
        wait.end(
            SlaveTimeoutError(f"{needed} replicas did not have the messages in {timeout_ms} ms")
        )
