"""The push consumer: it calls a listener with the messages of its topics.

It pulls, with requests that a broker holds until there are messages (long polling). The members of
a group share the queues of their topics (clustering), or each gets all of them (broadcasting).
Everything here belongs to the event loop; only listeners that are plain functions run in threads.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from goddard.client.consume.consumer import GroupConsumer, GroupMember
from goddard.client.consume.options import MIB, PushKeywords, PushOptions
from goddard.client.consume.pull_loop import PullLoop
from goddard.client.consume.push_queues import PushQueues
from goddard.client.consume.queue_buffer import ProcessQueue
from goddard.client.consume.status import ConsumeRates, running_info
from goddard.client.consume.subscriptions import Expression, SubscriptionCheck, Subscriptions
from goddard.client.errors import NotRunningError
from goddard.client.listeners.concurrent import ConcurrentConsumption
from goddard.client.listeners.hooks import with_hooks
from goddard.client.listeners.listener import check_listener
from goddard.client.listeners.locks import QueueLocks
from goddard.client.listeners.orderly import OrderlyConsumption
from goddard.client.listeners.redelivery import Redelivery
from goddard.client.message import ReceivedMessage
from goddard.client.options import session_options, split_options
from goddard.client.produce.running import open_tracer
from goddard.client.session import Session
from goddard.client.signals import set_by_signals
from goddard.client.trace.hooks import ConsumeTracing
from goddard.client.trace.tracer import Tracer
from goddard.client.values import MessageQueue, ServiceState
from goddard.environment import Environment
from goddard.errors import ConfigError
from goddard.protocol.bodies import ConsumeType
from goddard.protocol.bodies_client import ConsumeDirectlyResult, ConsumerRunningInfo
from goddard.protocol.message import PROPERTY_RETRY_TOPIC
from goddard.protocol.names import (
    is_retry_topic,
    retry_topic,
    topic_problem,
    with_namespace,
    without_namespace,
)
from goddard.transport.tasks import finish

if TYPE_CHECKING:
    from typing_extensions import Unpack

L = TypeVar("L", bound=Callable[..., Any])

# How long a reset of offsets waits for running calls of the listener. RocketMQ always sleeps so
# long.
_RESET_WAIT_MS: Final = 10_000
# The retry topic is created with the first heartbeat; its route is asked for so many times.
_RETRY_ROUTE_ATTEMPTS: Final = 10

_logger: Final = logging.getLogger("goddard.client")


class PushConsumer(GroupConsumer["PushMember"]):
    """Calls a listener with the messages of its topics.

    The listener is a function of ``(messages, context)``: a plain one, which runs in a thread, or a
    coroutine function, which runs on the client's event loop. See
    ``goddard.client.listeners.listener`` for what its result means: None or True is success; False,
    RECONSUME_LATER or an exception mean that the messages are delivered again after a delay that
    grows, and go to the group's dead-letter topic after ``max_reconsume_times``.

    ``options`` are those of PushOptions, ConsumerOptions and SessionOptions.
    """

    _kind = "PushConsumer"
    _not_running = "The consumer service state not OK, {state}"

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        listener: Callable[..., Any] | None = None,
        **options: "Unpack[PushKeywords]",
    ) -> None:
        own, common = split_options(PushOptions, options)
        environment = common.get("environment") or Environment()
        shared = session_options(name_servers, common)
        super().__init__(
            group, shared if own.is_broadcast else shared.for_process(environment), environment
        )
        self._options = own
        self._listener: Callable[..., Any] | None = None
        self._stopped = asyncio.Event()
        if listener is not None:
            self.listen(listener)

    async def wait(self) -> None:
        """Wait until the process gets SIGINT or SIGTERM, or until the consumer is stopped.

        For programs that only consume: ``async with consumer: await consumer.wait()``.
        """
        self._running()
        with set_by_signals(self._stopped):
            await self._stopped.wait()

    async def stop(self) -> None:
        """Leave the group, write the offsets and close everything. Does nothing unless started."""
        await super().stop()
        self._stopped.set()

    def listen(self, listener: L) -> L:
        """Set the listener, before the start; may be used as a decorator."""
        check_listener(listener)
        if self._state is not ServiceState.CREATED:
            raise NotRunningError("the listener must be set before the start", code=0)
        self._listener = listener
        return listener

    def subscribe(self, topic: str, expression: Expression = "*") -> None:
        """Subscribe to a topic: to all of it, to some tags, or by an SQL92 condition.

        Before or after the start. It replaces an earlier subscription to the same topic.
        """
        if (problem := topic_problem(topic)) is not None:
            raise ConfigError(f"the topic {str(topic)[:200]!r} cannot be subscribed to: {problem}")
        self._subscribe(with_namespace(topic, self._namespace), expression)
        self._announce()

    def unsubscribe(self, topic: str) -> None:
        """End a subscription; the next rebalance releases the topic's queues."""
        self._subscriptions.remove(with_namespace(topic, self._namespace))
        self._announce()

    def suspend(self) -> None:
        """Pull nothing more until ``resume``; what was pulled is consumed."""
        self._running().queues.pause()

    def resume(self) -> None:
        """Pull again."""
        self._running().queues.resume()

    @property
    def is_suspended(self) -> bool:
        return self._member is not None and self._member.queues.is_paused

    def assigned_queues(self) -> set[MessageQueue]:
        """The queues that this consumer consumes now."""
        return set() if self._member is None else self._member.queues.assigned()

    def _check_startable(self) -> None:
        if self._listener is None:
            raise ConfigError("the consumer has no listener; give it one with listen()")
        if not self._subscriptions:
            _logger.warning("Group %s has no subscription yet", self._group)

    def _start_details(self) -> str:
        model = self._options.message_model.value
        return f", messageModel={model}, {len(self._subscriptions.all)} topics"

    def _make_member(self, session: Session) -> "PushMember":
        if self._listener is None:
            raise ConfigError("the consumer has no listener; give it one with listen()")
        if not self._options.is_broadcast:
            self._subscribe(retry_topic(self._group), "*")
        return PushMember(session, self._group, self._options, self._subscriptions, self._listener)


class PushMember(GroupMember[ProcessQueue]):
    """A push consumer that runs."""

    consume_type = ConsumeType.PASSIVELY

    def __init__(
        self,
        session: Session,
        group: str,
        options: PushOptions,
        subscriptions: Subscriptions,
        listener: Callable[..., Any],
    ) -> None:
        super().__init__(session, group, options, subscriptions)
        self.options = options
        self._tracer: Tracer | None = None
        self._check = SubscriptionCheck(session, group)
        self._checking: asyncio.Task[None] | None = None
        self._retry_route_attempts = 0
        self._rates = ConsumeRates()
        locks = QueueLocks(session, group)
        self.queues = PushQueues(
            session,
            group,
            options,
            offsets=self.offsets,
            rates=self._rates,
            locks=locks if options.orderly and not options.is_broadcast else None,
            subscription_of=subscriptions.announced,
            prepare=self._prepare,
            changed=self._queues_changed,
        )
        self._pulls = self.queues.pulls = self.make_pull_loop(
            self.queues,
            {"max_messages": options.pull_batch_size, "max_bytes": options.pull_batch_bytes},
            options.pull_interval_ms,
        )
        self._consumption = self.queues.consumption = self._make_consumption(listener, locks)

    def _make_consumption(
        self, listener: Callable[..., Any], locks: QueueLocks
    ) -> ConcurrentConsumption | OrderlyConsumption:
        listener = self._with_hooks(listener)
        redelivery = Redelivery(self.session, self.group, self.options.reconsume_limit)
        if self.options.orderly:
            return OrderlyConsumption(
                listener,
                self.group,
                self.options,
                offsets=self.offsets,
                redelivery=redelivery,
                locks=locks,
                owned=self.queues.locked_queues,
                rates=self._rates,
                environment=self.session.environment,
                released=self._pulls.wake,
            )
        return ConcurrentConsumption(
            listener,
            self.group,
            self.options,
            offsets=self.offsets,
            redelivery=redelivery,
            rates=self._rates,
            environment=self.session.environment,
            released=self._pulls.wake,
        )

    def _with_hooks(self, listener: Callable[..., Any]) -> Callable[..., Any]:
        hooks = list(self.options.consume_hooks)
        if self.options.trace is not None:
            group = self.session.without_namespace(self.group)
            self._tracer = open_tracer(self.options.trace, self.session, group, "CONSUME")
            hooks.append(ConsumeTracing(self._tracer, self.session))
        return with_hooks(
            listener,
            hooks,
            group=self.group,
            timeout_ms=self.options.consume_timeout_ms,
            clock=self.session.clock,
        )

    @property
    def assignment(self) -> PushQueues:
        return self.queues

    @property
    def pulls(self) -> PullLoop[ProcessQueue]:
        return self._pulls

    async def open(self) -> None:
        if self._tracer is not None:
            await self._tracer.start()
        await super().open()
        self._consumption.start()

    async def _close_parts(self) -> None:
        await finish(
            self.queues.close,
            partial(self._consumption.close, self.options.await_termination_ms),
            partial(self.offsets.persist_all, self.queues.owned.keys(), wait=True),
            self.queues.unlock_all,
            *(() if self._tracer is None else (self._tracer.stop,)),
        )

    # --- What the session calls -------------------------------------------------------------------

    async def rebalance(self) -> bool:
        if not self._has_joined:
            return True
        self._check_group()
        is_balanced = await super().rebalance()
        retry = retry_topic(self.group)
        if retry in self.subscriptions and self.session.route(retry) is None:
            self._retry_route_attempts += 1
            return is_balanced and self._retry_route_attempts > _RETRY_ROUTE_ATTEMPTS
        return is_balanced

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        wanted = {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
        await self.queues.reset(wanted, _RESET_WAIT_MS)

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        options, limits = self.options, self.queues.limits
        strategy = options.strategy
        return running_info(
            consume_type=self.consume_type,
            settings={
                "consumerGroup": self.group,
                "messageModel": options.message_model.value,
                "consumeFromWhere": options.consume_from.value,
                "consumeThreadMin": options.consume_threads,
                "consumeThreadMax": options.consume_threads,
                "consumeMessageBatchMaxSize": options.consume_batch_size,
                "consumeConcurrentlyMaxSpan": options.max_span,
                "maxReconsumeTimes": options.reconsume_limit,
                "pullBatchSize": options.pull_batch_size,
                "pullInterval": options.pull_interval_ms,
                "pullThresholdForQueue": limits.queue_count,
                "pullThresholdSizeForQueue": limits.queue_bytes // MIB,
                "allocateMessageQueueStrategy": "" if strategy is None else strategy.name,
                "pause": self.queues.is_paused,
                "unitMode": self.session.options.unit_mode,
                "PROP_CONSUMEORDERLY": options.orderly,
                "PROP_THREADPOOL_CORE_SIZE": self._consumption.worker_count,
            },
            name_servers=self.session.name_servers,
            started_ms=self.started_ms,
            subscriptions=self.subscriptions.all,
            buffers=self.queues.owned.values(),
            offsets=self.offsets,
            rates=self._rates,
            clock=self.session.clock,
            with_stacks=with_stacks,
        )

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        self._prepare(message.queue, [message])
        return await self._consumption.consume_directly(message)

    # --- Inside -----------------------------------------------------------------------------------

    def _check_group(self) -> None:
        """Compare the subscriptions with the group's, in the background."""
        if self._checking is None or self._checking.done():
            self._checking = self.tasks.spawn(
                self._check.check(self.subscriptions.all), f"subscription check of {self.group}"
            )

    def _prepare(self, queue: MessageQueue, messages: list[ReceivedMessage]) -> None:
        """Give messages the topic that they were sent to."""
        if is_retry_topic(queue.topic):
            for message in messages:
                message.topic = message.get(PROPERTY_RETRY_TOPIC) or message.topic
        namespace = self.session.options.namespace
        if namespace:
            for message in messages:
                message.topic = without_namespace(message.topic, namespace)

    async def _queues_changed(
        self, topic: str, queues: list[MessageQueue], ours: list[MessageQueue]
    ) -> None:
        # Another member may have sent the broker another subscription in between.
        self.subscriptions.renew(topic, self.session.clock.now_ms())
        await self.heartbeat()
        if self.options.on_assignment is not None:
            try:
                self.options.on_assignment(topic, set(queues), set(ours))
            except Exception:
                _logger.exception("on_assignment of the group %s failed", self.group)
