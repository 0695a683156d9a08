"""What a push consumer is made of while it runs, put together. Belongs to the event loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from goddard.client.consume.allocation import AllocationStrategy
from goddard.client.consume.assignment import Assignment
from goddard.client.consume.locks import QueueLocks
from goddard.client.consume.offsets import BrokerOffsets, LocalOffsets, Offsets
from goddard.client.consume.process_queue import ProcessQueue
from goddard.client.consume.pull_loop import Feeder, FeedingOptions
from goddard.client.consume.rates import ConsumeRates
from goddard.client.consume.subscription_check import GroupCheck
from goddard.client.listeners.concurrent import ConcurrentConsumption, ConsumptionOptions
from goddard.client.listeners.orderly import OrderlyConsumption
from goddard.client.listeners.redelivery import Retries
from goddard.client.message import ReceivedMessage
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.protocol.bodies_client import SubscriptionData
from goddard.transport.tasks import Tasks

_logger: Final = logging.getLogger("goddard.client")


class Running:
    """The parts of one consumer. The functions are the consumer's own, which the parts call."""

    def __init__(
        self,
        session: Session,
        group: str,
        listener: Callable[..., Any],
        *,
        consuming: ConsumptionOptions,
        feeding: FeedingOptions,
        allocation: AllocationStrategy,
        offsets_folder: Path | None,
        subscription_of: Callable[[str], SubscriptionData | None],
        prepare: Callable[[MessageQueue, list[ReceivedMessage]], None],
        lost: Callable[[ProcessQueue, int | None], None],
        changed: Callable[[str, list[MessageQueue], list[MessageQueue]], Awaitable[None]],
    ) -> None:
        self.session = session
        self.started_ms = session.clock.now_ms()
        self.tasks = Tasks(_logger, logging.DEBUG)
        self.check = GroupCheck(session, group)
        self.checking: asyncio.Task[None] | None = None
        self.retry_route_tries = 0
        self.rates = ConsumeRates()
        self.offsets: Offsets = (
            LocalOffsets(session.client_id, group, folder=offsets_folder)
            if consuming.is_broadcast
            else BrokerOffsets(session, group)
        )
        locks = QueueLocks(session, group)
        needs_locks = feeding.is_orderly and not consuming.is_broadcast
        self.feeder = Feeder(
            session,
            group,
            # A copy: its limits change with the number of queues.
            replace(feeding),
            offsets=self.offsets,
            rates=self.rates,
            subscription_of=subscription_of,
            prepare=prepare,
            lost=lost,
            locks=locks if needs_locks else None,
        )
        retries = Retries(session, group, consuming.max_reconsume_times)
        self.consumption: ConcurrentConsumption | OrderlyConsumption
        if feeding.is_orderly:
            self.consumption = OrderlyConsumption(
                listener,
                consuming,
                offsets=self.offsets,
                retries=retries,
                locks=locks,
                rates=self.rates,
                clock=session.clock,
                released=self.feeder.released,
            )
        else:
            self.consumption = ConcurrentConsumption(
                listener,
                consuming,
                offsets=self.offsets,
                retries=retries,
                rates=self.rates,
                clock=session.clock,
                released=self.feeder.released,
            )
        self.assignment = Assignment(
            session,
            group,
            allocation,
            is_broadcast=consuming.is_broadcast,
            offsets=self.offsets,
            feeder=self.feeder,
            locks=locks if needs_locks else None,
            consumption=self.consumption,
            changed=changed,
        )
