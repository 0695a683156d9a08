"""Locks of queues: a broker lets one consumer of an orderly group have a queue at a time.

A queue is locked when it is taken, the lock is renewed while the queue is owned, and the queue is
unlocked when it is released. If a broker does not answer, a lock stays as it was and expires by
itself. Belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from goddard.client import broker_api
from goddard.client.consume.queue_buffer import ProcessQueue
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError

# RocketMQ's rocketmq.client.rebalance.lockInterval.
RENEW_SECONDS: Final = 20.0
FIRST_RENEW_SECONDS: Final = 1.0

_logger: Final = logging.getLogger("goddard.client")


class QueueLocks:
    """The locks of one consumer."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        # Brokers that did not answer: one warning is enough.
        self._silent: set[str] = set()

    async def lock(self, wanted: Iterable[ProcessQueue]) -> set[ProcessQueue]:
        """Lock queues, or renew their locks; sets ``locked_at_ms`` of those that are locked now.

        Returns those that were refused; a broker that does not answer refuses nothing.
        """
        by_broker: dict[str, list[ProcessQueue]] = {}
        for buffer in wanted:
            by_broker.setdefault(buffer.queue.broker_name, []).append(buffer)
        refused = await asyncio.gather(
            *(self._lock(name, buffer) for name, buffer in by_broker.items())
        )
        return set().union(*refused)

    async def _lock(self, broker_name: str, wanted: list[ProcessQueue]) -> set[ProcessQueue]:
        found = self._session.find_broker(broker_name, only_this=True)
        if found is None:
            return set()
        # The time before the request: the broker's lease starts later, and so ends later.
        now_ms = self._session.clock.monotonic_ms()
        try:
            locked = await broker_api.lock_queues(
                self._session,
                found[0],
                self._group,
                self._session.client_id,
                [buffer.queue for buffer in wanted],
            )
        except GoddardError as error:
            level = logging.DEBUG if broker_name in self._silent else logging.WARNING
            self._silent.add(broker_name)
            _logger.log(
                level, "broker %s did not lock queues of %s: %s", broker_name, self._group, error
            )
            return set()
        self._silent.discard(broker_name)
        refused = set()
        for buffer in wanted:
            if buffer.queue in locked:
                if buffer.locked_at_ms is None:
                    _logger.info(
                        "the message queue locked OK, Group: %s %s", self._group, buffer.queue
                    )
                buffer.locked_at_ms = now_ms
                continue
            if buffer.locked_at_ms is not None:
                _logger.warning("the lock of %s was lost, group %s", buffer.queue, self._group)
                buffer.locked_at_ms = None
            refused.add(buffer)
        return refused

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues; failures are logged."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        for broker_name, owned in by_broker.items():
            found = self._session.find_broker(broker_name, only_this=True)
            if found is None:
                continue
            try:
                await broker_api.unlock_queues_oneway(
                    self._session, found[0], self._group, self._session.client_id, owned
                )
            except GoddardError as error:
                _logger.warning("broker %s did not unlock queues: %s", broker_name, error)
