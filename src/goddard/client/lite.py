"""The lite pull consumer: messages are pulled ahead and handed out when the user asks for them.

Two modes that exclude each other: with ``subscribe`` the members of the group share the queues of a
topic out among themselves; with ``assign`` the user names the queues. Everything here belongs to
the event loop.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from goddard.client import calls
from goddard.client.allocation import AllocationStrategy, Averagely
from goddard.client.consumehooks import ConsumeHook, ConsumeHookContext
from goddard.client.errors import ClientError, NoRouteError, NotRunningError
from goddard.client.handout import Handout
from goddard.client.identity import ProcessGuard
from goddard.client.joining import check_conditions, learn_route, share_of
from goddard.client.message import ReceivedMessage
from goddard.client.offsets import BrokerOffsets, LocalOffsets, Offsets, master_address
from goddard.client.options import SessionKeywords, check_kind, check_range, session_options
from goddard.client.prefetch import AssignedQueue
from goddard.client.pullahead import PullAhead, PullSettings
from goddard.client.queuewatch import QueuesListener, QueueWatch
from goddard.client.running_info import thread_stacks
from goddard.client.session import Session
from goddard.client.subscriptions import Expression, subscription
from goddard.client.trace import ConsumeOutcome
from goddard.client.values import ConsumeFrom, MessageModel, MessageQueue, ServiceState
from goddard.clock import Clock, SystemClock
from goddard.errors import ConfigError, GoddardError
from goddard.protocol import bodies
from goddard.protocol.bodies import ConsumeFromWhere, ConsumeType
from goddard.protocol.bodies_client import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ProcessQueueInfo,
    SubscriptionData,
)
from goddard.protocol.codes import ResponseCode
from goddard.protocol.names import group_problem, topic_problem, with_namespace, without_namespace
from goddard.protocol.responses import ResponseError
from goddard.transport.tasks import Tasks, finish

if TYPE_CHECKING:
    from typing_extensions import Unpack

_logger: Final = logging.getLogger("goddard.client")

_DEFAULT_GROUP: Final = "DEFAULT_CONSUMER"
_FIRST_QUEUE_CHECK_MS: Final = 10_000
_DEFAULT_START_AGO_MS: Final = 30 * 60 * 1000
# As long as RocketMQ's push consumer waits before it reads a queue that was another member's.
_HANDOVER_MS: Final = 500
_MIB: Final = 1024 * 1024

AssignmentListener = Callable[[str, set[MessageQueue], set[MessageQueue]], None]
"""Called on the event loop with a topic, its queues, and those of them that are this consumer's."""


class _Mode(Enum):
    NONE = "none"
    SUBSCRIBE = "subscribe"
    ASSIGN = "assign"


class _Open(NamedTuple):
    """What a consumer has while it runs."""

    session: Session
    offsets: Offsets
    pulls: PullAhead
    handout: Handout


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
        if (problem := group_problem(group)) is not None:
            raise ConfigError(problem)
        if group == _DEFAULT_GROUP:
            raise ConfigError(
                f"consumerGroup can not equal {_DEFAULT_GROUP}, please specify another one."
            )
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
        self._auto_commit = auto_commit
        self._commit_interval_ms = check_range(
            "auto_commit_interval_ms", auto_commit_interval_ms, 1
        )
        self._queue_check_ms = check_range("queue_check_interval_ms", queue_check_interval_ms, 10)
        self._allocation = allocation or Averagely()
        self._offsets_folder = offsets_folder
        self._hooks = tuple(consume_hooks)
        own = session_options(name_servers, options)
        self._options = own.for_process() if message_model is MessageModel.CLUSTERING else own
        self._namespace = own.namespace
        self._group = with_namespace(group, self._namespace)
        self._guard = ProcessGuard()
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._state = ServiceState.CREATED
        self._open: _Open | None = None
        # The brokers know of this member; before, there is nothing to share out.
        self._has_joined = False
        self._mode = _Mode.NONE
        # Names of topics are the brokers' in here: with the namespace.
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._wanted: set[MessageQueue] = set()
        self._assignment_listeners: dict[str, AssignmentListener] = {}
        self._watch = QueueWatch()
        self._next_commit_ms = 0
        self._started_ms = 0

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
            raise NotRunningError(
                f"The PullConsumer service state not OK, maybe started once, {self._state.value}"
            )
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
        pulls = PullAhead(session, self._group, offsets, self._settings, self._subscription_of)
        self._open = _Open(session, offsets, pulls, Handout(pulls, self._prepare))
        self._state = ServiceState.RUNNING
        self._started_ms = self._clock.now_ms()
        try:
            await self._join(session)
        except BaseException:
            await self.stop()
            raise
        _logger.info("the consumer [%s] start OK", self._group)

    async def _join(self, session: Session) -> None:
        for topic in sorted(self.subscribed_topics()):
            await learn_route(session, topic)
        await check_conditions(session, self._group, self._subscriptions.values())
        await self._watch.check(session)
        await session.heartbeat()
        if self._mode is _Mode.ASSIGN:
            self._assign_wanted()
        self._has_joined = True
        if not await self.rebalance():
            session.wake_rebalance()
        first_ms = min(_FIRST_QUEUE_CHECK_MS, self._queue_check_ms)
        self._tasks.periodic(
            "QueueCheck",
            self._queue_check_ms / 1000,
            partial(self._watch.check, session),
            first_seconds=first_ms / 1000,
        )

    async def stop(self) -> None:
        """Leave the group, keep the offsets, close everything. Does nothing unless started."""
        opened = self._open
        if opened is None or self._state is not ServiceState.RUNNING:
            return
        self._state = ServiceState.STOPPED
        await finish(
            self._tasks.stop,
            opened.pulls.stop,
            partial(self._keep_offsets, opened.offsets),
            partial(opened.session.remove_consumer, self._group),
            opened.session.stop,
        )
        _logger.info("the consumer [%s] shutdown OK", self._group)

    async def _keep_offsets(self, offsets: Offsets) -> None:
        if self._auto_commit:
            self._note_done()
        try:
            await offsets.flush(offsets.table())
        except GoddardError as error:
            _logger.warning("the offsets of %s could not be written: %s", self._group, error)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _running(self) -> _Open:
        self._guard.check()
        if self._open is None or self._state is not ServiceState.RUNNING:
            raise NotRunningError("The consumer not running, please start it first.")
        return self._open

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
            self._tasks.spawn(self._announce(name), f"subscription to {name}")

    def unsubscribe(self, topic: str) -> None:
        """Read nothing more of a topic."""
        name = self._topic(topic)
        self._subscriptions.pop(name, None)
        self._assignment_listeners.pop(name, None)
        if self._open is not None:
            for queue in [queue for queue in self._open.pulls.queues if queue.topic == name]:
                self._give_up(queue)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues and no others, whatever the rest of the group does."""
        wanted = {self._inner(queue) for queue in queues}
        if not wanted:
            raise ConfigError("Message queues can not be null or empty.")
        self._enter(_Mode.ASSIGN)
        self._wanted = wanted
        if self._state is ServiceState.RUNNING:
            self._assign_wanted()

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
        return {self._shown(queue) for queue in self._running().pulls.queues}

    def _enter(self, mode: _Mode) -> None:
        if self._mode not in (_Mode.NONE, mode):
            raise ClientError("Subscribe and assign are mutually exclusive.")
        self._mode = mode

    def _topic(self, topic: str) -> str:
        if (problem := topic_problem(topic)) is not None:
            raise ConfigError(problem)
        return with_namespace(topic, self._namespace)

    def _subscription_of(self, topic: str) -> SubscriptionData:
        return self._subscriptions.get(topic) or SubscriptionData(topic=topic)

    async def _announce(self, topic: str) -> None:
        """Tell the group of a new subscription."""
        opened = self._running()
        await learn_route(opened.session, topic)
        await opened.session.heartbeat()
        # At once: the loop rests for a second if it looked before the heartbeat.
        if not await self.rebalance():
            opened.session.wake_rebalance()

    def _assign_wanted(self) -> None:
        pulls = self._running().pulls
        for queue in pulls.queues.keys() - self._wanted:
            self._give_up(queue)
        for queue in sorted(self._wanted):
            pulls.assign(queue)

    def _give_up(self, queue: MessageQueue) -> None:
        """Stop reading a queue, and let the next one to read it know how far it was read."""
        opened = self._open
        assigned = opened.pulls.drop(queue) if opened is not None else None
        if opened is None or assigned is None:
            return
        opened.handout.left(assigned)
        if self._auto_commit and assigned.done_offset is not None:
            opened.offsets.update(queue, assigned.done_offset)
        self._tasks.spawn(self._persist_and_forget(opened.offsets, queue), f"offset of {queue}")

    async def _persist_and_forget(self, offsets: Offsets, queue: MessageQueue) -> None:
        await offsets.persist(queue)
        if self._open is None or queue not in self._open.pulls.queues:
            offsets.forget(queue)

    # --- Messages ---------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """The next messages, of one queue; none if none came in time (``poll_timeout_ms``).

        With auto commit, everything handed out before counts as consumed from now on.
        """
        opened = self._running()
        if timeout_ms is None:
            timeout_ms = self._poll_timeout_ms
        if timeout_ms < 0:
            raise ValueError("Timeout must not be negative")
        self._commit_in_time()
        return await opened.handout.next_batch(timeout_ms)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message; waits for it as long as the consumer runs."""
        if self._state is ServiceState.STOPPED:
            raise StopAsyncIteration
        handout = self._running().handout
        self._commit_in_time()
        message = await handout.next_message()
        if message is None:
            raise StopAsyncIteration
        return message

    def _commit_in_time(self) -> None:
        """Auto commit, if it is time: the user wants more, so it is through with what it got."""
        if not self._auto_commit or self._open is None:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_commit_ms:
            self._open.handout.ask_on()
            self._note_done()
            self._next_commit_ms = now_ms + self._commit_interval_ms

    def _note_done(self) -> None:
        opened = self._open
        if opened is None:
            return
        for queue, assigned in opened.pulls.queues.items():
            if assigned.done_offset is not None:
                opened.offsets.update(queue, assigned.done_offset)

    def _prepare(self, messages: list[ReceivedMessage]) -> None:
        if self._namespace:
            for message in messages:
                message.topic = without_namespace(message.topic, self._namespace)
                message.queue = self._shown(message.queue)
        if self._hooks:
            # As RocketMQ does it: what becomes of the messages is not known, and taken for success.
            seen = ConsumeHookContext(self._group, messages, self._clock.now_ms())
            for hook in self._hooks:
                self._tell(partial(hook.before_consume, seen))
            seen.outcome = ConsumeOutcome.SUCCESS
            seen.ended_ms = self._clock.now_ms()
            for hook in self._hooks:
                self._tell(partial(hook.after_consume, seen))

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
        opened = self._running()
        queues = opened.pulls.queues
        noted: dict[MessageQueue, int] = {}
        if isinstance(offsets, Mapping):
            for queue, offset in offsets.items():
                if offset < 0:
                    raise ConfigError(f"{offset} is no offset of {queue}")
                noted[self._inner(queue)] = offset
        else:
            named = queues if offsets is None else [self._inner(queue) for queue in offsets]
            for queue in named:
                assigned = queues.get(queue)
                if assigned is not None and assigned.given_offset is not None:
                    noted[queue] = assigned.given_offset
        for queue, offset in noted.items():
            # What is said here stands until the user asks for more.
            self._assigned(queue).done_offset = offset
            opened.offsets.update(queue, offset)
        if persist:
            await opened.offsets.flush(noted)

    async def committed(self, queue: MessageQueue) -> int | None:
        """How far a queue is consumed, as noted here or by the broker; None if neither knows."""
        return await self._running().offsets.read(self._inner(queue))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue from this offset on; it must be within the queue."""
        opened = self._running()
        inner = self._inner(queue)
        self._assigned(inner)
        address = await master_address(opened.session, inner)
        low = await calls.min_offset(opened.session, address, inner)
        high = await calls.max_offset(opened.session, address, inner)
        if not low <= offset <= high:
            raise ClientError(
                f"Seek offset illegal, seek offset = {offset}, min offset = {low}, "
                f"max offset = {high}"
            )
        self._move(inner, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Read a queue from its oldest message on."""
        await self._seek_to(queue, calls.min_offset)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Read of a queue only what comes from now on."""
        await self._seek_to(queue, calls.max_offset)

    async def _seek_to(self, queue: MessageQueue, find: Callable[..., Awaitable[int]]) -> None:
        opened = self._running()
        inner = self._inner(queue)
        self._assigned(inner)
        address = await master_address(opened.session, inner)
        self._move(inner, await find(opened.session, address, inner))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message of a queue that was stored at this time or later."""
        opened = self._running()
        inner = self._inner(queue)
        address = await master_address(opened.session, inner)
        return await calls.search_offset(opened.session, address, inner, timestamp_ms)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Pull nothing more of these queues for now; what was pulled is still handed out."""
        pulls = self._running().pulls
        for queue in queues:
            pulls.pause(self._inner(queue))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull from paused queues again."""
        pulls = self._running().pulls
        for queue in queues:
            pulls.resume(self._inner(queue))

    def paused(self) -> set[MessageQueue]:
        return {
            self._shown(queue)
            for queue, assigned in self._running().pulls.queues.items()
            if assigned.is_paused
        }

    def _assigned(self, queue: MessageQueue) -> AssignedQueue:
        assigned = self._running().pulls.queues.get(queue)
        if assigned is None:
            maybe = ", may be rebalancing" if self._mode is _Mode.SUBSCRIBE else ""
            raise ClientError(
                f"The message queue is not in assigned list{maybe}, message queue: {queue}"
            )
        return assigned

    def _move(self, queue: MessageQueue, offset: int) -> None:
        opened = self._running()
        opened.handout.left(self._assigned(queue))
        opened.pulls.seek(queue, offset)

    # --- Queues of topics -------------------------------------------------------------------------

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic that can be read, as the name server knows them now."""
        session = self._running().session
        queues = await session.subscribe_queues(self._topic(topic), refresh=True)
        return sorted(self._shown(queue) for queue in queues)

    def listen_to_queues(self, topic: str, listener: QueuesListener) -> None:
        """Have ``listener`` called when queues of a topic come or go; subscribed to or not.

        It is looked for every ``queue_check_interval_ms``.
        """

        def shown(_: str, queues: set[MessageQueue]) -> None:
            listener(topic, {self._shown(queue) for queue in queues})

        self._watch.listen(self._topic(topic), shown)

    def _tell(self, listener: Callable[[], None]) -> None:
        """Call the user's own; what it raises is logged and goes no further."""
        try:
            listener()
        except Exception:
            _logger.exception("a listener or hook of the consumer [%s] failed", self._group)

    def _inner(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=with_namespace(queue.topic, self._namespace))

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
        if self._open is not None:
            self._open.session.wake_rebalance()

    async def rebalance(self) -> bool:
        if self._mode is not _Mode.SUBSCRIBE or not self._has_joined:
            return True
        is_balanced = True
        for topic in list(self._subscriptions):
            try:
                is_balanced &= await self._rebalance_topic(topic)
            except NoRouteError as error:
                # It was told when it was subscribed to, and is looked for every second.
                _logger.info("%s of %s is not rebalanced: %s", topic, self._group, error)
                is_balanced = False
            except GoddardError as error:
                _logger.warning("%s of %s is not rebalanced: %s", topic, self._group, error)
                is_balanced = False
        return is_balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        opened = self._running()
        queues = await opened.session.subscribe_queues(topic)
        share, has_others = set(queues), False
        if self._model is MessageModel.CLUSTERING:
            found = await share_of(opened.session, self._group, queues, self._allocation)
            if found is None:
                return False
            share, has_others = found
        if self._state is not ServiceState.RUNNING or topic not in self._subscriptions:
            return True
        held = {queue for queue in opened.pulls.queues if queue.topic == topic}
        if held == share:
            return True
        for queue in sorted(held - share):
            self._give_up(queue)
        for queue in sorted(share - held):
            opened.offsets.forget(queue)
            # Who has a queue so far gets a moment to say how far it was consumed.
            opened.pulls.assign(queue, delay_ms=_HANDOVER_MS if has_others else 0)
        listener = self._assignment_listeners.get(topic)
        if listener is not None:
            everything = {self._shown(queue) for queue in queues}
            mine = {self._shown(queue) for queue in share}
            name = without_namespace(topic, self._namespace)
            self._tell(partial(listener, name, everything, mine))
        return True

    async def persist_offsets(self) -> None:
        if self._open is not None and self._state is ServiceState.RUNNING:
            await self._open.offsets.persist_all(list(self._open.pulls.queues))

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """What ``mqadmin resetOffsetByTime`` asks of a consumer that is online."""
        opened = self._running()
        for queue, offset in offsets.items():
            if queue.topic == topic and queue in opened.pulls.queues:
                self._move(queue, offset)
                opened.offsets.update(queue, offset)
                await opened.offsets.persist(queue)

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        return {} if self._open is None else self._open.offsets.table(topic)

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        opened = self._running()
        info = ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(opened.session.name_servers) + ";",
                "PROP_CONSUME_TYPE": ConsumeType.ACTIVELY.value,
                "PROP_CLIENT_VERSION": "V5_4_0",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            },
            subscription_set=list(self.consumer_data().subscription_data_set),
        )
        for queue, assigned in opened.pulls.queues.items():
            key = bodies.MessageQueue(
                topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id
            )
            info.mq_table[key] = ProcessQueueInfo(
                commit_offset=opened.offsets.cached(queue) or 0,
                cached_msg_count=assigned.waiting_count,
                cached_msg_size_in_mib=assigned.size_bytes // _MIB,
            )
        if with_stacks:
            info.jstack = thread_stacks()
        return info

    async def consume_directly(
        self, message: ReceivedMessage, broker_name: str
    ) -> ConsumeDirectlyResult:
        """There is no listener that could."""
        raise ResponseError.of(
            ResponseCode.SYSTEM_ERROR,
            f"The Consumer Group <{self._group}> not exist in this consumer",
            "",
        )
