"""Locks of queues: a broker lets one consumer of an orderly group have a queue at a time.

A lock is asked for when a queue is taken, renewed while it is kept, and given back with it. What a
broker does not answer leaves a lock as it was: it runs out by itself. Belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from goddard.client import broker_api
from goddard.client.consume.process_queue import ProcessQueue
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
        # Brokers that did not answer: worth a warning once, not at every try.
        self._silent: set[str] = set()

    async def lock(self, wanted: Iterable[ProcessQueue]) -> set[ProcessQueue]:
        """Ask for locks, new or again; what was got is noted in the process queues.

        Gives those that were refused; a broker that does not answer refuses nothing.
        """
        by_broker: dict[str, list[ProcessQueue]] = {}
        for held in wanted:
            by_broker.setdefault(held.queue.broker_name, []).append(held)
        refused = await asyncio.gather(
            *(self._lock(name, held) for name, held in by_broker.items())
        )
        return set().union(*refused)

    async def _lock(self, broker_name: str, wanted: list[ProcessQueue]) -> set[ProcessQueue]:
        found = self._session.find_broker(broker_name, only_this=True)
        if found is None:
            return set()
        # Noted before it is asked for: the broker's time starts later, and runs longer.
        now_ms = self._session.clock.monotonic_ms()
        try:
            locked = await broker_api.lock_queues(
                self._session,
                found[0],
                self._group,
                self._session.client_id,
                [held.queue for held in wanted],
            )
        except GoddardError as error:
            level = logging.DEBUG if broker_name in self._silent else logging.WARNING
            self._silent.add(broker_name)
            _logger.log(
                level, "%s does not lock queues for %s: %s", broker_name, self._group, error
            )
            return set()
        self._silent.discard(broker_name)
        refused = set()
        for held in wanted:
            if held.queue in locked:
                if held.locked_at_ms is None:
                    _logger.info(
                        "the message queue locked OK, Group: %s %s", self._group, held.queue
                    )
                held.locked_at_ms = now_ms
                continue
            if held.locked_at_ms is not None:
                _logger.warning("the lock of %s is lost, group %s", held.queue, self._group)
                held.locked_at_ms = None
            refused.add(held)
        return refused

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks back."""
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
                _logger.warning("%s does not unlock queues: %s", broker_name, error)
