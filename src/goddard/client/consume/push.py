"""The push consumer: subscribe, give a listener, and it is called with the messages.

It pulls all the same, with requests that a broker holds until there is something (long polling).
The members of a group share the queues of their topics out among themselves (clustering), or each
gets everything (broadcasting). Everything here belongs to the event loop; only listeners that are
plain functions run elsewhere, in threads.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from goddard.client.checks import check_consumer_group, check_hooks
from goddard.client.consume.allocation import AllocationStrategy, Averagely
from goddard.client.consume.membership import check_conditions, learn_route
from goddard.client.consume.process_queue import ProcessQueue
from goddard.client.consume.pull_loop import FeedingOptions
from goddard.client.consume.push_parts import Running
from goddard.client.consume.queue_changes import AssignmentListener
from goddard.client.consume.status import running_info
from goddard.client.consume.subscriptions import Expression, subscription
from goddard.client.errors import ClientError, NotRunningError, already_started
from goddard.client.identity import ProcessGuard
from goddard.client.listeners.concurrent import ConsumptionOptions
from goddard.client.listeners.hooks import ConsumeHook, with_hooks
from goddard.client.listeners.listener import check_listener
from goddard.client.message import ReceivedMessage
from goddard.client.options import SessionKeywords, check_kind, check_range, session_options
from goddard.client.produce.running import open_tracer
from goddard.client.session import Session
from goddard.client.trace.hooks import ConsumeTracing
from goddard.client.trace.tracer import TraceOptions, Tracer
from goddard.client.values import ConsumeFrom, MessageModel, MessageQueue, ServiceState
from goddard.clock import Clock, SystemClock
from goddard.errors import ConfigError, GoddardError
from goddard.protocol import bodies
from goddard.protocol.bodies import ConsumeType
from goddard.protocol.bodies_client import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    SubscriptionData,
)
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

_L = TypeVar("_L", bound=Callable[..., Any])

_START_AGO_MS: Final = 30 * 60 * 1000
_TRIES_OF_A_CONCURRENT_GROUP: Final = 16
# RocketMQ sleeps so long before it sets other offsets; here it is the most.
_RESET_WAIT_MS: Final = 10_000
# The retry topic comes into being with the first heartbeat; its route is asked for so many times.
_RETRY_ROUTE_TRIES: Final = 10

_logger: Final = logging.getLogger("goddard.client")


class PushConsumer:
    """Calls a listener with the messages of its topics.

    The listener is a function of ``(messages, context)``, plain (it runs in one of at most
    ``consume_threads`` threads) or a coroutine function (as many at a time, on the loop). It gets
    ``consume_batch_size`` messages at most. See ``goddard.client.listeners.listener`` for what its
    result means: None or True is success; False, RECONSUME_LATER or an exception mean that the
    messages come again, after a delay that grows, until ``max_reconsume_times`` (16 if -1; for
    orderly consumers -1 is for ever) was reached and they go to the group's dead-letter topic. A
    call of a concurrent listener that takes longer than ``consume_timeout_ms`` is given up as
    failed; a call of an orderly listener is waited for.

    With ``orderly`` the messages of a queue are consumed one batch after the other, each queue by
    one member of the group at a time; a batch that failed is consumed again after
    ``suspend_queue_ms``, before all that follow it.

    A group without offsets begins at ``consume_from``; TIMESTAMP means ``consume_timestamp_ms``,
    half an hour ago if left out. With ``MessageModel.BROADCASTING`` every member gets all messages,
    there are no retries, and offsets are kept in a file below ``offsets_folder``
    (``~/.rocketmq_offsets``).

    Pulling pauses while a queue holds more than ``pull_threshold_for_queue`` messages,
    ``pull_threshold_mib_for_queue`` mebibytes or, unless orderly, a stretch of ``max_span``
    offsets. Thresholds for a topic, unless -1, are divided among the queues.

    ``consume_hooks`` are called around the listener; ``trace`` writes down when each message was
    consumed, and how that ended.

    ``stop`` waits ``await_termination_ms`` for calls of the listener that run.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        listener: Callable[..., Any] | None = None,
        orderly: bool = False,
        message_model: MessageModel = MessageModel.CLUSTERING,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        consume_threads: int = 20,
        consume_batch_size: int = 1,
        consume_timeout_ms: int = 15 * 60 * 1000,
        max_reconsume_times: int = -1,
        suspend_queue_ms: int = 1_000,
        pull_batch_size: int = 32,
        pull_batch_bytes: int = 256 * 1024,
        pull_interval_ms: int = 0,
        pull_error_delay_ms: int = 1_000,
        pull_threshold_for_queue: int = 1_000,
        pull_threshold_mib_for_queue: int = 100,
        pull_threshold_for_topic: int = -1,
        pull_threshold_mib_for_topic: int = -1,
        max_span: int = 2_000,
        await_termination_ms: int = 0,
        allocation: AllocationStrategy | None = None,
        offsets_folder: Path | None = None,
        on_assignment: AssignmentListener | None = None,
        consume_hooks: Sequence[ConsumeHook] = (),
        trace: TraceOptions | None = None,
        **options: "Unpack[SessionKeywords]",
    ) -> None:
        check_consumer_group(group)
        # The first of all, for pickle comes upon it first.
        self._guard = ProcessGuard()
        check_kind("orderly", orderly, bool)
        check_kind("message_model", message_model, MessageModel)
        check_kind("consume_from", consume_from, ConsumeFrom)
        if trace is not None:
            check_kind("trace", trace, TraceOptions)
        self._clock: Clock = options.get("clock") or SystemClock()
        own = session_options(name_servers, options)
        is_broadcast = message_model is MessageModel.BROADCASTING
        self._session_options = own if is_broadcast else own.for_process()
        self._group = with_namespace(group, own.namespace)
        self._listener: Callable[..., Any] | None = None
        self._is_orderly = orderly
        self._model = message_model
        self._allocation = allocation or Averagely()
        self._offsets_folder = offsets_folder
        self._on_assignment = on_assignment
        self._consume_hooks = check_hooks("consume_hooks", consume_hooks)
        self._trace = trace
        self._tracer: Tracer | None = None
        self._await_termination_ms = check_range("await_termination_ms", await_termination_ms, 0)
        if consume_timestamp_ms is None:
            consume_timestamp_ms = self._clock.now_ms() - _START_AGO_MS
        tries = check_range("max_reconsume_times", max_reconsume_times, -1)
        if tries < 0 and not orderly:
            tries = _TRIES_OF_A_CONCURRENT_GROUP
        self._consumption_options = ConsumptionOptions(
            group=self._group,
            batch_size=check_range("consume_batch_size", consume_batch_size, 1, 1024),
            workers=check_range("consume_threads", consume_threads, 1, 1000),
            is_broadcast=is_broadcast,
            max_reconsume_times=tries,
            timeout_ms=check_range("consume_timeout_ms", consume_timeout_ms, 1),
            suspend_ms=check_range("suspend_queue_ms", suspend_queue_ms, 10, 30_000),
        )
        self._feeding_options = FeedingOptions(
            pull_batch_size=check_range("pull_batch_size", pull_batch_size, 1, 1024),
            pull_batch_bytes=check_range("pull_batch_bytes", pull_batch_bytes, 1024),
            pull_interval_ms=check_range("pull_interval_ms", pull_interval_ms, 0, 65_535),
            pull_error_delay_ms=check_range("pull_error_delay_ms", pull_error_delay_ms, 1),
            max_count=check_range("pull_threshold_for_queue", pull_threshold_for_queue, 1, 65_535),
            max_mib=check_range(
                "pull_threshold_mib_for_queue", pull_threshold_mib_for_queue, 1, 1024
            ),
            max_span=check_range("max_span", max_span, 1, 65_535),
            consume_from=consume_from,
            consume_timestamp_ms=check_range(
                "consume_timestamp_ms", consume_timestamp_ms, 0, 2**62
            ),
            is_orderly=orderly,
            is_broadcast=is_broadcast,
        )
        self._topic_count = _topic_threshold("pull_threshold_for_topic", pull_threshold_for_topic)
        self._topic_mib = _topic_threshold(
            "pull_threshold_mib_for_topic", pull_threshold_mib_for_topic
        )
        # By topic as brokers know it. What pulls carry may be older than what heartbeats say, never
        # newer, for a broker refuses that.
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._announced: dict[str, SubscriptionData] = {}
        self._last_version = 0
        self._state = ServiceState.CREATED
        self._running: Running | None = None
        if listener is not None:
            self.listen(listener)

    # --- Life -------------------------------------------------------------------------------------

    @property
    def state(self) -> ServiceState:
        return self._state

    @property
    def client_id(self) -> str:
        return self._session_options.client_id

    @property
    def group(self) -> str:
        """The group as brokers know it: with the namespace."""
        return self._group

    def listen(self, listener: _L) -> _L:
        """Set the listener; may be used as a decorator. Before the start."""
        check_listener(listener)
        if self._running is not None:
            raise NotRunningError("the listener is set before the start", code=0)
        self._listener = listener
        return listener

    def subscribe(self, topic: str, expression: Expression = "*") -> None:
        """Want a topic's messages: all, those with some tags, or those that fulfil a condition.

        May be called at any time. What another call said about the same topic is replaced.
        """
        if (problem := topic_problem(topic)) is not None:
            raise ConfigError(f"the topic {str(topic)[:200]!r} cannot be subscribed to: {problem}")
        name = with_namespace(topic, self._session_options.namespace)
        self._subscriptions[name] = subscription(name, expression, self._next_version())
        self._announce()

    def unsubscribe(self, topic: str) -> None:
        """Want a topic's messages no more; its queues are given up by the next rebalance."""
        name = with_namespace(topic, self._session_options.namespace)
        self._subscriptions.pop(name, None)
        self._announced.pop(name, None)
        self._announce()

    def suspend(self) -> None:
        """Pull no more until ``resume``; what was pulled is consumed."""
        self._run().feeder.pause()

    def resume(self) -> None:
        self._run().feeder.go_on()

    @property
    def is_suspended(self) -> bool:
        return self._running is not None and self._running.feeder.is_paused

    def assigned_queues(self) -> set[MessageQueue]:
        """The queues that this consumer works on now."""
        if self._running is None:
            return set()
        owned = self._running.assignment.owned
        return {queue for queue, held in owned.items() if not held.is_dropped}

    async def start(self) -> None:
        """Join the group. Raises if an SQL92 subscription is refused by the broker.

        Topics may still be subscribed to later; until then nothing comes, of which a warning tells.
        Unless others of the group have to give up queues first, a consumer that has started gets
        what is sent from then on.
        """
        self._guard.check()
        if self._state is not ServiceState.CREATED:
            raise already_started("PushConsumer", self._state.value)
        if self._listener is None:
            raise ConfigError("the consumer has no listener; give it one with listen()")
        self._state = ServiceState.START_FAILED
        if not self._subscriptions:
            _logger.warning("nothing comes to [%s] before a topic is subscribed to", self._group)
        if not self._consumption_options.is_broadcast:
            topic = retry_topic(self._group)
            self._subscriptions[topic] = subscription(topic, "*", self._next_version())
        session = Session.shared(self._session_options, clock=self._clock)
        try:
            session.add_consumer(self._group, self)
        except ClientError:
            self._state = ServiceState.CREATED
            raise
        try:
            listener = self._with_hooks(session, self._listener)
            self._running = running = Running(
                session,
                self._group,
                listener,
                consuming=self._consumption_options,
                feeding=self._feeding_options,
                allocation=self._allocation,
                offsets_folder=self._offsets_folder,
                subscription_of=self._announced_of,
                prepare=self._prepare,
                lost=self._lost,
                changed=self._changed,
            )
            await session.start()
        except BaseException:
            await session.remove_consumer(self._group)
            raise
        try:
            if self._tracer is not None:
                await self._tracer.start()
            await running.offsets.load()
            running.consumption.start(running.assignment.locked_queues)
            await self._join(session)
        except BaseException:
            await self._leave(running)
            raise
        self._state = ServiceState.RUNNING
        _logger.info(
            "the consumer [%s] start OK, messageModel=%s, %d topics",
            self._group,
            self._model.value,
            len(self._subscriptions),
        )
        try:
            is_balanced = await self.rebalance()
            await running.feeder.wait_for_beginnings(self._session_options.api_timeout_ms)
        except GoddardError as error:
            _logger.warning("the first rebalance of %s failed: %s", self._group, error)
            is_balanced = False
        except BaseException:
            if self._state is ServiceState.RUNNING:
                self._state = ServiceState.START_FAILED
                await self._leave(running)
            raise
        if not is_balanced:
            session.wake_rebalance()

    async def _join(self, session: Session) -> None:
        for topic in list(self._subscriptions):
            if not is_retry_topic(topic):
                await learn_route(session, topic)
        await check_conditions(session, self._group, self._subscriptions.values())
        await session.heartbeat()
        self._announced = dict(self._subscriptions)

    async def stop(self) -> None:
        """Leave the group: call the listener no more, write the offsets, give the queues up."""
        if self._state is not ServiceState.RUNNING or self._running is None:
            return
        self._state = ServiceState.STOPPED
        await self._leave(self._running)
        _logger.info("the consumer [%s] shutdown OK", self._group)

    async def _leave(self, running: Running) -> None:
        assignment = running.assignment
        await finish(
            running.tasks.stop,
            assignment.close,
            partial(running.consumption.close, self._await_termination_ms),
            partial(running.offsets.persist_all, assignment.owned.keys(), wait=True),
            assignment.release,
            *(() if self._tracer is None else (self._tracer.stop,)),
            partial(running.session.remove_consumer, self._group),
            running.session.stop,
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _run(self) -> Running:
        self._guard.check()
        if self._state is not ServiceState.RUNNING or self._running is None:
            raise NotRunningError(
                f"The consumer service state not OK, {self._state.value}",
                advice="start it first; a stopped one does not start again",
            )
        return self._running

    # --- What the session asks --------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self._group,
            consume_type=ConsumeType.PASSIVELY,
            message_model=self._model,
            consume_from_where=bodies.ConsumeFromWhere(self._feeding_options.consume_from.value),
            subscription_data_set=list(self._subscriptions.values()),
            unit_mode=self._session_options.unit_mode,
        )

    def subscribed_topics(self) -> Iterable[str]:
        return tuple(self._subscriptions)

    def route_changed(self, topic: str, queues: list[MessageQueue]) -> None:
        if self._running is not None and self._state is ServiceState.RUNNING:
            self._running.session.wake_rebalance()

    async def rebalance(self) -> bool:
        """Take and give up queues; True if nothing is left to do."""
        running = self._running
        if running is None or self._state is not ServiceState.RUNNING:
            return True
        self._check_group(running)
        is_balanced = await running.assignment.rebalance(self._subscriptions)
        retry = retry_topic(self._group)
        if retry in self._subscriptions and running.session.route(retry) is None:
            running.retry_route_tries += 1
            return is_balanced and running.retry_route_tries > _RETRY_ROUTE_TRIES
        return is_balanced

    async def persist_offsets(self) -> None:
        if self._running is not None and self._state is ServiceState.RUNNING:
            # Those being given up among them: what is left out is forgotten.
            await self._running.offsets.persist_all(self._running.assignment.owned.keys())

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        wanted = {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
        await self._run().assignment.reset(wanted, _RESET_WAIT_MS)

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        return self._run().offsets.table(topic)

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        running = self._run()
        feeding, consuming = self._feeding_options, self._consumption_options
        return running_info(
            settings={
                "consumerGroup": self._group,
                "messageModel": self._model.value,
                "consumeFromWhere": feeding.consume_from.value,
                "consumeThreadMin": consuming.workers,
                "consumeThreadMax": consuming.workers,
                "consumeMessageBatchMaxSize": consuming.batch_size,
                "consumeConcurrentlyMaxSpan": feeding.max_span,
                "maxReconsumeTimes": consuming.max_reconsume_times,
                "pullBatchSize": feeding.pull_batch_size,
                "pullInterval": feeding.pull_interval_ms,
                "pullThresholdForQueue": feeding.max_count,
                "pullThresholdSizeForQueue": feeding.max_mib,
                "allocateMessageQueueStrategy": self._allocation.name,
                "pause": running.feeder.is_paused,
                "unitMode": self._session_options.unit_mode,
            },
            name_servers=running.session.name_servers,
            is_orderly=self._is_orderly,
            thread_count=running.consumption.worker_count,
            started_ms=running.started_ms,
            subscriptions=self._subscriptions.values(),
            owned=running.assignment.owned.values(),
            offsets=running.offsets,
            rates=running.rates,
            clock=self._clock,
            with_stacks=with_stacks,
        )

    async def consume_directly(
        self, message: ReceivedMessage, broker_name: str
    ) -> ConsumeDirectlyResult:
        running = self._run()
        self._prepare(message.queue, [message])
        return await running.consumption.consume_directly(message)

    # --- Inside -----------------------------------------------------------------------------------

    def _with_hooks(self, session: Session, listener: Callable[..., Any]) -> Callable[..., Any]:
        hooks = list(self._consume_hooks)
        if self._trace is not None:
            group = session.without_namespace(self._group)
            self._tracer = open_tracer(self._trace, session, group, "CONSUME")
            hooks.append(ConsumeTracing(self._tracer, session))
        timeout_ms = self._consumption_options.timeout_ms
        return with_hooks(
            listener, hooks, group=self._group, timeout_ms=timeout_ms, clock=self._clock
        )

    def _check_group(self, running: Running) -> None:
        """Compare us with the group, beside what else is to be done."""
        if running.checking is None or running.checking.done():
            wanted = list(self._subscriptions.values())
            running.checking = running.tasks.spawn(
                running.check.check(wanted), f"subscriptions of {self._group}"
            )

    def _announced_of(self, topic: str) -> SubscriptionData | None:
        return self._announced.get(topic)

    def _next_version(self) -> int:
        """Grows, whatever the clock does: of two versions a broker keeps the newer."""
        self._last_version = max(self._clock.now_ms(), self._last_version + 1)
        return self._last_version

    def _announce(self) -> None:
        """Tell the brokers about subscriptions that changed, and rebalance."""
        running = self._running
        if running is None or self._state is not ServiceState.RUNNING:
            return

        async def announce() -> None:
            for topic in self._subscriptions.keys() - self._announced.keys():
                await learn_route(running.session, topic)
            told = dict(self._subscriptions)
            await running.session.heartbeat()
            changed = [
                topic for topic, wanted in told.items() if wanted != self._announced.get(topic)
            ]
            self._announced = told
            running.feeder.pull_anew(changed, running.consumption)
            running.session.wake_rebalance()

        running.tasks.spawn(announce(), f"subscriptions of {self._group}")

    def _prepare(self, queue: MessageQueue, messages: list[ReceivedMessage]) -> None:
        """Give messages the topic that their sender gave them."""
        if is_retry_topic(queue.topic):
            for message in messages:
                message.topic = message.get(PROPERTY_RETRY_TOPIC) or message.topic
        namespace = self._session_options.namespace
        if namespace:
            for message in messages:
                message.topic = without_namespace(message.topic, namespace)

    async def _changed(
        self, topic: str, queues: list[MessageQueue], ours: list[MessageQueue]
    ) -> None:
        """Our queues of a topic changed: limits are shared out anew, and brokers told again."""
        running = self._running
        if running is None:
            return
        feeding = running.feeder.options
        count = max(1, len(self.assigned_queues()))
        if self._topic_count > 0:
            feeding.max_count = max(1, self._topic_count // count)
        if self._topic_mib > 0:
            feeding.max_mib = max(1, self._topic_mib // count)
        # Another member may have told the broker something else in between.
        wanted = self._subscriptions.get(topic)
        if wanted is not None:
            self._subscriptions[topic] = msgspec.structs.replace(
                wanted, sub_version=self._next_version()
            )
        told = dict(self._subscriptions)
        await running.session.heartbeat()
        self._announced = told
        if self._on_assignment is not None:
            try:
                self._on_assignment(topic, set(queues), set(ours))
            except Exception:
                _logger.exception("on_assignment of the group %s failed", self._group)

    def _lost(self, held: ProcessQueue, offset: int | None) -> None:
        running = self._running
        if running is not None and self._state is ServiceState.RUNNING:
            running.tasks.spawn(running.assignment.restart(held, offset), f"restart {held.queue}")


def _topic_threshold(option: str, value: int) -> int:
    return value if value == -1 else check_range(option, value, 1, 6_553_500)
