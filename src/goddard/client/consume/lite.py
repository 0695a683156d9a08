"""The lite pull consumer: messages are pulled ahead and handed out when the user asks for them.

Two modes that exclude each other: with ``subscribe`` the members of the group share the queues of a
topic out among themselves; with ``assign`` the user names the queues. Everything here belongs to
the event loop.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from goddard.client.checks import check_consumer_group, check_new_topic, check_queue, several, table
from goddard.client.consume.allocation import AllocationStrategy, Averagely
from goddard.client.consume.lite_parts import Running
from goddard.client.consume.membership import check_conditions, learn_route, share_of
from goddard.client.consume.offsets import BrokerOffsets, LocalOffsets, Offsets
from goddard.client.consume.poll_buffer import Portion
from goddard.client.consume.prefetch_queue import AssignedQueue
from goddard.client.consume.prefetcher import PullSettings
from goddard.client.consume.queue_changes import AssignmentListener, QueuesListener, QueueWatch
from goddard.client.consume.subscriptions import Expression, subscription
from goddard.client.errors import ClientError, NoRouteError, NotRunningError, already_started
from goddard.client.identity import ProcessGuard
from goddard.client.listeners.hooks import ConsumeHook, with_hooks
from goddard.client.message import ReceivedMessage
from goddard.client.options import SessionKeywords, check_kind, check_range, session_options
from goddard.client.session import Session
from goddard.client.values import ConsumeFrom, MessageModel, MessageQueue, ServiceState
from goddard.clock import Clock, SystemClock
from goddard.errors import ConfigError, GoddardError
from goddard.protocol.bodies import ConsumeFromWhere, ConsumeType
from goddard.protocol.bodies_client import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    SubscriptionData,
)
from goddard.protocol.codes import ResponseCode
from goddard.protocol.names import with_namespace, without_namespace
from goddard.protocol.responses import ResponseError
from goddard.transport.tasks import finish

if TYPE_CHECKING:
    from typing_extensions import Unpack

_logger: Final = logging.getLogger("goddard.client")

_FIRST_QUEUE_CHECK_MS: Final = 10_000
_NO_TIMEOUT_MS: Final = 2**31
_DEFAULT_START_AGO_MS: Final = 30 * 60 * 1000


class _Mode(Enum):
    NONE = "none"
    SUBSCRIBE = "subscribe"
    ASSIGN = "assign"


class LitePullConsumer:
    """A consumer that asks for its messages: ``poll`` gives a batch, ``async for`` one by one.

    There is no redelivery. What was handed out and not committed comes again only after a restart,
    or when another member takes the queue over. Messages count as consumed:

    - with ``poll`` and ``auto_commit``, when the next ``poll`` begins; a batch that the user fails
      on is not committed unless the user polls again;
    - with ``async for`` and ``auto_commit``, when the loop asks for the next message; an exception
      in its body, or ``break``, leaves the last message uncommitted;
    - with ``commit``, at once: everything handed out so far, or what it is told.

    Auto commit notes offsets every ``auto_commit_interval_ms``, when the user asks for messages.
    They travel to the broker every ``persist_offsets_interval_ms``, and when the consumer stops or
    gives a queue up. One task at a time may ask for messages.

    ``pull_batch_size`` messages at most come with one pull, and so with one ``poll``. Pulling
    pauses while more than ``pull_threshold_for_all`` messages wait, or of one queue more than
    ``pull_threshold_for_queue`` of them, ``pull_threshold_mib_for_queue`` mebibytes, or a
    stretch of ``max_span`` offsets. A broker holds a pull that finds nothing for
    ``broker_suspend_ms``. A group without offsets begins at ``consume_from``; TIMESTAMP means
    ``consume_timestamp_ms``, half an hour ago if left out. With ``MessageModel.BROADCASTING`` every
    member reads all queues, and offsets are kept in a file below ``offsets_folder``
    (``~/.rocketmq_offsets``).
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        message_model: MessageModel = MessageModel.CLUSTERING,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        pull_batch_size: int = 10,
        pull_threshold_for_all: int = 10_000,
        pull_threshold_for_queue: int = 1_000,
        pull_threshold_mib_for_queue: int = 100,
        max_span: int = 2_000,
        poll_timeout_ms: int = 5_000,
        broker_suspend_ms: int = 20_000,
        pull_timeout_ms: int = 30_000,
        pull_error_delay_ms: int = 1_000,
        auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        queue_check_interval_ms: int = 30_000,
        allocation: AllocationStrategy | None = None,
        offsets_folder: Path | None = None,
        consume_hooks: Sequence[ConsumeHook] = (),
        **options: "Unpack[SessionKeywords]",
    ) -> None:
        check_consumer_group(group)
        # The first of all, for pickle comes upon it first.
        self._guard = ProcessGuard()
        check_kind("message_model", message_model, MessageModel)
        check_kind("consume_from", consume_from, ConsumeFrom)
        self._model = message_model
        self._clock: Clock = options.get("clock") or SystemClock()
        if consume_timestamp_ms is None:
            consume_timestamp_ms = self._clock.now_ms() - _DEFAULT_START_AGO_MS
        self._consume_from = consume_from
        self._settings = PullSettings(
            pull_batch_size=pull_batch_size,
            broker_suspend_ms=broker_suspend_ms,
            pull_timeout_ms=pull_timeout_ms,
            pull_error_delay_ms=pull_error_delay_ms,
            consume_from=consume_from,
            consume_timestamp_ms=consume_timestamp_ms,
            pull_threshold_for_all=pull_threshold_for_all,
            pull_threshold_for_queue=pull_threshold_for_queue,
            pull_threshold_mib_for_queue=pull_threshold_mib_for_queue,
            max_span=max_span,
        )
        self._poll_timeout_ms = check_range("poll_timeout_ms", poll_timeout_ms, 0)
        check_range("auto_commit_interval_ms", auto_commit_interval_ms, 1)
        self._auto_commit_ms = auto_commit_interval_ms if auto_commit else None
        self._queue_check_ms = check_range("queue_check_interval_ms", queue_check_interval_ms, 10)
        is_broadcast = message_model is MessageModel.BROADCASTING
        self._allocation = None if is_broadcast else allocation or Averagely()
        self._offsets_folder = offsets_folder
        own = session_options(name_servers, options)
        self._options = own if is_broadcast else own.for_process()
        self._namespace = own.namespace
        self._group = with_namespace(group, self._namespace)
        # As RocketMQ does it: what becomes of the messages is not known, and taken for success.
        self._handed_out = with_hooks(
            lambda messages, context: None,
            consume_hooks,
            group=self._group,
            timeout_ms=_NO_TIMEOUT_MS,
            clock=self._clock,
        )
        self._state = ServiceState.CREATED
        self._running: Running | None = None
        # The brokers know of this member; before, there is nothing to share out.
        self._has_joined = False
        self._mode = _Mode.NONE
        # Names of topics are the brokers' in here: with the namespace.
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._wanted: set[MessageQueue] = set()
        self._assignment_listeners: dict[str, AssignmentListener] = {}
        self._watch = QueueWatch()

    # --- Life -------------------------------------------------------------------------------------

    @property
    def group(self) -> str:
        """The group as brokers know it, with the namespace if there is one."""
        return self._group

    @property
    def client_id(self) -> str:
        return self._options.client_id

    @property
    def state(self) -> ServiceState:
        return self._state

    async def start(self) -> None:
        """Join the group and begin to pull. A consumer starts once."""
        self._guard.check()
        if self._state is not ServiceState.CREATED:
            raise already_started("PullConsumer", self._state.value)
        self._state = ServiceState.START_FAILED
        offsets: Offsets | None = None
        if self._model is MessageModel.BROADCASTING:
            offsets = LocalOffsets(self.client_id, self._group, folder=self._offsets_folder)
            await offsets.load()
        session = Session.shared(self._options, clock=self._clock)
        if offsets is None:
            offsets = BrokerOffsets(session, self._group)
        await session.start()
        try:
            session.add_consumer(self._group, self)
        except BaseException:
            self._state = ServiceState.CREATED
            await session.stop()
            raise
        self._running = running = Running(
            session,
            self._group,
            offsets,
            self._settings,
            auto_commit_ms=self._auto_commit_ms,
            subscription_of=self._subscription_of,
            prepare=self._prepare,
        )
        self._state = ServiceState.RUNNING
        try:
            await self._join(running)
        except BaseException:
            if self._state is ServiceState.RUNNING:
                self._state = ServiceState.START_FAILED
                await self._leave(running)
            raise
        _logger.info("the consumer [%s] start OK", self._group)

    async def _join(self, running: Running) -> None:
        session = running.session
        for topic in sorted(self.subscribed_topics()):
            await learn_route(session, topic)
        await check_conditions(session, self._group, self._subscriptions.values())
        await self._watch.check(session)
        await session.heartbeat()
        if self._mode is _Mode.ASSIGN:
            running.read_only(self._wanted)
        self._has_joined = True
        if not await self.rebalance():
            session.wake_rebalance()
        first_ms = min(_FIRST_QUEUE_CHECK_MS, self._queue_check_ms)
        running.tasks.periodic(
            "QueueCheck",
            self._queue_check_ms / 1000,
            partial(self._watch.check, session),
            first_seconds=first_ms / 1000,
        )

    async def stop(self) -> None:
        """Leave the group, keep the offsets, close everything. Does nothing unless started."""
        running = self._running
        if running is None or self._state is not ServiceState.RUNNING:
            return
        self._state = ServiceState.STOPPED
        await self._leave(running)
        _logger.info("the consumer [%s] shutdown OK", self._group)

    async def _leave(self, running: Running) -> None:
        await finish(
            running.tasks.stop,
            running.pulls.stop,
            running.keep_offsets,
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
        if self._running is None or self._state is not ServiceState.RUNNING:
            raise NotRunningError("The consumer not running, please start it first.")
        return self._running

    # --- What to read -----------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        expression: Expression = "*",
        *,
        listener: AssignmentListener | None = None,
    ) -> None:
        """Read this consumer's share of a topic; ``listener`` is told whenever the share changes.

        Before or after the start. Of each message that is not wanted nothing is seen but a gap in
        the offsets.
        """
        name = self._topic(topic)
        wanted = subscription(name, expression, self._clock.now_ms())
        self._enter(_Mode.SUBSCRIBE)
        self._subscriptions[name] = wanted
        if listener is not None:
            self._assignment_listeners[name] = listener
        if self._state is ServiceState.RUNNING:
            running = self._run()
            running.tasks.spawn(self._announce(running, name), f"subscription to {name}")

    def unsubscribe(self, topic: str) -> None:
        """Read nothing more of a topic."""
        name = self._topic(topic)
        self._subscriptions.pop(name, None)
        self._assignment_listeners.pop(name, None)
        if self._running is not None:
            self._running.take_share(name, set(), has_others=False)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues and no others, whatever the rest of the group does.

        ``queues`` is a list, also of a single queue; as everywhere here.
        """
        wanted = set(self._inner_queues(queues))
        if not wanted:
            raise ConfigError("Message queues can not be null or empty.")
        self._enter(_Mode.ASSIGN)
        self._wanted = wanted
        if self._state is ServiceState.RUNNING:
            self._run().read_only(wanted)

    def filter_assigned(self, topic: str, expression: Expression) -> None:
        """What to read of a topic's assigned queues; all of it, if this is not called.

        Before the start only.
        """
        if self._state is not ServiceState.CREATED:
            raise NotRunningError("setAssignTag only can be called before start.")
        name = self._topic(topic)
        wanted = subscription(name, expression, self._clock.now_ms())
        self._enter(_Mode.ASSIGN)
        self._subscriptions[name] = wanted

    def assignment(self) -> set[MessageQueue]:
        """The queues that are read now."""
        return {self._shown(queue) for queue in self._run().queues}

    def _enter(self, mode: _Mode) -> None:
        if self._mode not in (_Mode.NONE, mode):
            raise ClientError("Subscribe and assign are mutually exclusive.")
        self._mode = mode

    def _topic(self, topic: str) -> str:
        check_new_topic(topic)
        return with_namespace(topic, self._namespace)

    def _subscription_of(self, topic: str) -> SubscriptionData:
        return self._subscriptions.get(topic) or SubscriptionData(topic=topic)

    async def _announce(self, running: Running, topic: str) -> None:
        """Tell the group of a new subscription."""
        await learn_route(running.session, topic)
        await running.session.heartbeat()
        # At once: the loop rests for a second if it looked before the heartbeat.
        if not await self.rebalance():
            running.session.wake_rebalance()

    # --- Messages ---------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """The next messages, of one queue; none if none came in time (``poll_timeout_ms``).

        With auto commit, everything handed out before counts as consumed from now on.
        """
        running = self._run()
        if timeout_ms is None:
            timeout_ms = self._poll_timeout_ms
        if timeout_ms < 0:
            raise ValueError("Timeout must not be negative")
        if self._mode is _Mode.NONE:
            _logger.warning("nothing comes to [%s] before subscribe or assign", self._group)
        running.commit_in_time()
        return await running.handout.next_batch(timeout_ms)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message; waits for it as long as the consumer runs."""
        if self._state is ServiceState.STOPPED:
            raise StopAsyncIteration
        running = self._run()
        running.commit_in_time()
        message = await running.handout.next_message()
        if message is None:
            raise StopAsyncIteration
        return message

    async def next_portion(self) -> Portion | None:
        """The next messages, for another thread to take one by one; None when no more will come."""
        if self._state is ServiceState.STOPPED:
            return None
        running = self._run()
        running.commit_in_time()
        return await running.handout.next_portion()

    def _prepare(self, messages: list[ReceivedMessage]) -> None:
        if self._namespace:
            for message in messages:
                message.topic = without_namespace(message.topic, self._namespace)
                message.queue = self._shown(message.queue)
        self._handed_out(messages, None)

    # --- Positions --------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None,
        *,
        persist: bool = True,
    ) -> None:
        """Note how far queues are consumed: all that was handed out of them, or the offsets given.

        None is all queues. Unless ``persist`` is False, this returns when the broker has noted it;
        otherwise it is told with the next round of ``persist_offsets_interval_ms``.
        """
        running = self._run()
        if offsets is None:
            noted = running.given(running.queues.keys())
        elif isinstance(offsets, Mapping):
            noted = {}
            for queue, offset in table("offsets", offsets, MessageQueue, int).items():
                noted[self._inner(queue)] = check_range(f"the offset of {queue}", offset, 0, 2**62)
        else:
            noted = running.given(self._inner_queues(offsets))
        for queue in noted:
            self._assigned(queue)
        for queue, offset in noted.items():
            # What is said here stands until the user asks for more.
            self._assigned(queue).done_offset = offset
            running.offsets.update(queue, offset)
        if persist:
            await running.offsets.flush(noted)

    async def committed(self, queue: MessageQueue) -> int | None:
        """How far a queue is consumed, as noted here or by the broker; None if neither knows."""
        return await self._run().offsets.read(self._inner(queue))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue from this offset on; it must be within the queue."""
        inner = self._inner(queue)
        low, high = await self._ends(inner)
        if not low <= offset <= high:
            raise ClientError(
                f"Seek offset illegal, seek offset = {offset}, min offset = {low}, "
                f"max offset = {high}"
            )
        self._move(inner, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Read a queue from its oldest message on."""
        inner = self._inner(queue)
        oldest, _ = await self._ends(inner)
        self._move(inner, oldest)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Read of a queue only what comes from now on."""
        inner = self._inner(queue)
        _, end = await self._ends(inner)
        self._move(inner, end)

    async def _ends(self, queue: MessageQueue) -> tuple[int, int]:
        self._assigned(queue)
        return await self._run().ends(queue)

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message of a queue that was stored at this time or later."""
        return await self._run().offset_at(self._inner(queue), timestamp_ms)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Pull nothing more of these queues for now; what was pulled is still handed out."""
        pulls = self._run().pulls
        for queue in self._inner_queues(queues):
            pulls.pause(queue)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull from paused queues again."""
        pulls = self._run().pulls
        for queue in self._inner_queues(queues):
            pulls.resume(queue)

    def paused(self) -> set[MessageQueue]:
        return {
            self._shown(queue)
            for queue, assigned in self._run().queues.items()
            if assigned.is_paused
        }

    def _assigned(self, queue: MessageQueue) -> AssignedQueue:
        return self._run().assigned(queue, is_shared=self._mode is _Mode.SUBSCRIBE)

    def _move(self, queue: MessageQueue, offset: int) -> None:
        self._assigned(queue)
        self._run().move(queue, offset)

    # --- Queues of topics -------------------------------------------------------------------------

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic that can be read, as the name server knows them now."""
        session = self._run().session
        queues = await session.subscribe_queues(self._topic(topic), refresh=True)
        return sorted(self._shown(queue) for queue in queues)

    def listen_to_queues(self, topic: str, listener: QueuesListener) -> None:
        """Have ``listener`` called when queues of a topic come or go; subscribed to or not.

        It is looked for every ``queue_check_interval_ms``.
        """

        def shown(_: str, queues: set[MessageQueue]) -> None:
            listener(topic, {self._shown(queue) for queue in queues})

        self._watch.listen(self._topic(topic), shown)

    def _inner(self, queue: MessageQueue) -> MessageQueue:
        return check_queue(queue)._replace(topic=with_namespace(queue.topic, self._namespace))

    def _inner_queues(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        return [self._inner(queue) for queue in several("queues", queues, MessageQueue)]

    def _shown(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=without_namespace(queue.topic, self._namespace))

    # --- As a member of the session ---------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        shared = self._subscriptions.values() if self._mode is _Mode.SUBSCRIBE else ()
        return ConsumerData(
            group_name=self._group,
            consume_type=ConsumeType.ACTIVELY,
            message_model=self._model,
            consume_from_where=ConsumeFromWhere(self._consume_from.value),
            subscription_data_set=list(shared),
            unit_mode=self._options.unit_mode,
        )

    def subscribed_topics(self) -> Collection[str]:
        if self._mode is _Mode.ASSIGN:
            return {queue.topic for queue in self._wanted}
        return self._subscriptions.keys()

    def route_changed(self, topic: str, queues: list[MessageQueue]) -> None:
        if self._running is not None:
            self._running.session.wake_rebalance()

    async def rebalance(self) -> bool:
        if self._mode is not _Mode.SUBSCRIBE or not self._has_joined:
            return True
        is_balanced = True
        for topic in list(self._subscriptions):
            try:
                is_balanced &= await self._rebalance_topic(topic)
            except NoRouteError as error:
                # The topic may be created later; its queues stay as they are until then.
                _logger.info(
                    "doRebalance, %s, but the topic[%s] not exist: %s", self._group, topic, error
                )
            except GoddardError as error:
                _logger.warning("rebalancing %s for %s failed: %s", topic, self._group, error)
                is_balanced = False
        return is_balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        running = self._run()
        queues = await running.session.subscribe_queues(topic)
        found = await share_of(running.session, self._group, queues, self._allocation)
        if found is None:
            return False
        share, has_others = found
        if self._state is not ServiceState.RUNNING or topic not in self._subscriptions:
            return True
        if not running.take_share(topic, share, has_others=has_others):
            return True
        self._tell_assignment(topic, queues, share)
        return True

    def _tell_assignment(
        self, topic: str, queues: Iterable[MessageQueue], share: Iterable[MessageQueue]
    ) -> None:
        listener = self._assignment_listeners.get(topic)
        if listener is None:
            return
        everything, mine = ({self._shown(queue) for queue in each} for each in (queues, share))
        try:
            listener(without_namespace(topic, self._namespace), everything, mine)
        except Exception:
            _logger.exception("the listener for the share of %s failed", topic)

    async def persist_offsets(self) -> None:
        if self._running is not None and self._state is ServiceState.RUNNING:
            await self._running.offsets.persist_all(list(self._running.queues))

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """What ``mqadmin resetOffsetByTime`` asks of a consumer that is online."""
        wanted = {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
        await self._run().reset(wanted)

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        return {} if self._running is None else self._running.offsets.table(topic)

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        wanted = self.consumer_data().subscription_data_set
        return self._run().info(wanted, with_stacks=with_stacks)

    async def consume_directly(
        self, message: ReceivedMessage, broker_name: str
    ) -> ConsumeDirectlyResult:
        """There is no listener that could."""
        raise ResponseError.of(
            ResponseCode.SYSTEM_ERROR,
            f"The Consumer Group <{self._group}> not exist in this consumer",
            "",
        )
