"""The lite pull consumer: messages are pulled ahead and delivered when the user asks for them.

It has two modes, which exclude each other: with ``subscribe`` the members of the group share the
queues of a topic; with ``assign`` the user names the queues. Everything here belongs to the event
loop.
"""

import logging
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from goddard.client import broker_api
from goddard.client.arguments import MAX_LONG
from goddard.client.checks import (
    check_function,
    check_list,
    check_mapping,
    check_new_topic,
    check_queue,
    check_range,
    check_timeout,
)
from goddard.client.consume.consumer import GroupConsumer, GroupMember
from goddard.client.consume.lite_queues import LiteQueues, QueueChanges
from goddard.client.consume.offsets import master_address
from goddard.client.consume.options import (
    AssignmentListener,
    LiteKeywords,
    LiteOptions,
    QueuesListener,
)
from goddard.client.consume.pull_loop import PullLoop
from goddard.client.consume.queue_buffer import PrefetchQueue
from goddard.client.consume.status import running_info
from goddard.client.consume.subscriptions import Expression, Subscriptions
from goddard.client.errors import ClientError, NotRunningError
from goddard.client.listeners.hooks import with_hooks
from goddard.client.members import no_consumer
from goddard.client.message import ReceivedMessage
from goddard.client.options import session_options, split_options
from goddard.client.session import Session
from goddard.client.values import MessageQueue, ServiceState
from goddard.environment import Environment
from goddard.errors import ConfigError
from goddard.protocol.bodies import ConsumeType
from goddard.protocol.bodies_client import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    SubscriptionData,
)
from goddard.protocol.names import with_namespace, without_namespace
from goddard.transport.tasks import finish

if TYPE_CHECKING:
    from typing_extensions import Unpack

_logger: Final = logging.getLogger("goddard.client")

_FIRST_QUEUE_CHECK_MS: Final = 10_000
_NO_TIMEOUT_MS: Final = 2**31


class Mode(Enum):
    """How a lite pull consumer gets its queues."""

    NONE = "none"
    SUBSCRIBE = "subscribe"
    ASSIGN = "assign"


class Reading:
    """What the user of a lite pull consumer wants to read. Names are as brokers know them."""

    def __init__(self) -> None:
        self.mode = Mode.NONE
        self.subscriptions = Subscriptions()
        # In mode ASSIGN.
        self.queues: set[MessageQueue] = set()
        self.assignment_listeners: dict[str, AssignmentListener] = {}
        self.changes = QueueChanges()

    def check(self, mode: Mode) -> None:
        """ClientError if it is read in the other mode."""
        if self.mode not in (Mode.NONE, mode):
            raise ClientError("Subscribe and assign are mutually exclusive.")


class LitePullConsumer(GroupConsumer["LiteMember"]):
    """A consumer that asks for its messages: ``poll`` gives a batch, ``async for`` one by one.

    Messages are not redelivered. What was delivered and not committed comes again only after a
    restart, or when another member takes the queue. Messages count as consumed:

    - with ``poll`` and ``auto_commit``, when the next ``poll`` begins; if the user fails on a batch
      and does not poll again, the batch is not committed;
    - with ``async for`` and ``auto_commit``, when the loop asks for the next message; after an
      exception in its body, or ``break``, the last message is not committed;
    - with ``commit``, at once: everything delivered so far, or the offsets given.

    Auto commit notes offsets every ``auto_commit_interval_ms``, when the user asks for messages.
    Brokers are told every ``persist_offsets_interval_ms``, and when the consumer stops or releases
    a queue. One task at a time may ask for messages.

    ``options`` are those of LiteOptions, ConsumerOptions and SessionOptions.
    """

    _kind = "PullConsumer"
    _not_running = "The consumer not running, please start it first."

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        **options: "Unpack[LiteKeywords]",
    ) -> None:
        own, common = split_options(LiteOptions, options)
        environment = common.get("environment") or Environment()
        shared = session_options(name_servers, common)
        super().__init__(
            group, shared if own.is_broadcast else shared.for_process(environment), environment
        )
        self._options = own
        self._reading = Reading()
        self._subscriptions = self._reading.subscriptions

    def _make_member(self, session: Session) -> "LiteMember":
        return LiteMember(session, self._group, self._options, self._reading)

    # --- What to read -----------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        expression: Expression = "*",
        *,
        listener: AssignmentListener | None = None,
    ) -> None:
        """Read this consumer's share of a topic; ``listener`` is called when the share changes.

        Before or after the start. Messages that do not match the expression leave only a gap in the
        offsets.
        """
        name = self._topic(topic)
        if listener is not None:
            check_function("listener", listener)
        self._read(Mode.SUBSCRIBE, name, expression)
        if listener is not None:
            self._reading.assignment_listeners[name] = listener
        self._announce()

    def unsubscribe(self, topic: str) -> None:
        """Read nothing more of a topic."""
        name = self._topic(topic)
        self._subscriptions.remove(name)
        self._reading.assignment_listeners.pop(name, None)
        if self._member is not None:
            self._member.queues.release_topic(name)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues and no others, whatever the rest of the group does.

        ``queues`` is a list, even for a single queue.
        """
        wanted = set(self._inner_queues(queues))
        if not wanted:
            raise ConfigError("Message queues can not be null or empty.")
        self._reading.check(Mode.ASSIGN)
        self._reading.mode = Mode.ASSIGN
        self._reading.queues = wanted
        if self._state is ServiceState.RUNNING:
            self._running().queues.read_only(wanted)

    def filter_assigned(self, topic: str, expression: Expression) -> None:
        """Read only matching messages of a topic's assigned queues. Before the start only."""
        if self._state is not ServiceState.CREATED:
            raise NotRunningError("setAssignTag only can be called before start.")
        self._read(Mode.ASSIGN, self._topic(topic), expression)

    def assignment(self) -> set[MessageQueue]:
        """The queues that are read now."""
        member = self._running()
        return {member.show(queue) for queue in member.queues.owned}

    def _read(self, mode: Mode, name: str, expression: Expression) -> None:
        self._reading.check(mode)
        # A wrong expression raises, and chooses no mode.
        self._subscribe(name, expression)
        self._reading.mode = mode

    def _topic(self, topic: str) -> str:
        check_new_topic(topic)
        return with_namespace(topic, self._namespace)

    # --- Messages ---------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """The next messages, of one queue; empty if none came in time (``poll_timeout_ms``).

        With auto commit, everything delivered before counts as consumed from now on.
        """
        member = self._running()
        if timeout_ms is None:
            timeout_ms = self._options.poll_timeout_ms
        else:
            check_timeout(timeout_ms, low=0)
        if self._reading.mode is Mode.NONE:
            _logger.warning("Group %s has no subscription and no assigned queue yet", self._group)
        member.queues.commit_in_time()
        return await member.queues.poll_buffer.next_batch(timeout_ms)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message; waits for it as long as the consumer runs."""
        if self._state is ServiceState.STOPPED:
            raise StopAsyncIteration
        queues = self._running().queues
        queues.commit_in_time()
        message = await queues.poll_buffer.next_message()
        if message is None:
            raise StopAsyncIteration
        return message

    # --- Positions --------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None,
        *,
        persist: bool = True,
    ) -> None:
        """Commit offsets of queues: those given, or of everything that was delivered.

        None means all queues. With ``persist`` this returns when the brokers have the offsets;
        otherwise they are told at the next ``persist_offsets_interval_ms``. If one of the queues is
        not read by this consumer, nothing is committed.
        """
        member = self._running()
        queues = member.queues
        if offsets is None:
            noted = queues.delivered_offsets(queues.owned.keys())
        elif isinstance(offsets, Mapping):
            noted = {}
            for queue, offset in check_mapping("offsets", offsets, MessageQueue, int).items():
                noted[self._inner(queue)] = check_range(f"the offset of {queue}", offset, 0, 2**62)
        else:
            noted = queues.delivered_offsets(self._inner_queues(offsets))
        for queue in noted:
            self._check_assigned(queue)
        queues.commit(noted)
        if persist:
            await member.offsets.flush(noted)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The committed offset of a queue; None if neither this consumer nor the broker has one."""
        return await self._running().offsets.read(self._inner(queue))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue from this offset on; it must be within the queue."""
        inner = self._inner(queue)
        check_range("offset", offset, -MAX_LONG, MAX_LONG)
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
        """Read only the messages of a queue that are stored from now on."""
        inner = self._inner(queue)
        _, end = await self._ends(inner)
        self._move(inner, end)

    async def _ends(self, queue: MessageQueue) -> tuple[int, int]:
        """The offset of the oldest message of a queue, and that of the next one to come."""
        self._check_assigned(queue)
        session = self._running().session
        address = await master_address(session, queue)
        low = await broker_api.min_offset(session, address, queue)
        return low, await broker_api.max_offset(session, address, queue)

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message of a queue that was stored at this time or later."""
        inner = self._inner(queue)
        check_range("timestamp_ms", timestamp_ms, -MAX_LONG, MAX_LONG)
        session = self._running().session
        address = await master_address(session, inner)
        return await broker_api.search_offset(session, address, inner, timestamp_ms)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Pull nothing more of these queues until ``resume``; what was pulled is delivered."""
        owned = self._running().queues
        for queue in self._inner_queues(queues):
            owned.pause(queue)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull from paused queues again."""
        owned = self._running().queues
        for queue in self._inner_queues(queues):
            owned.resume(queue)

    def paused(self) -> set[MessageQueue]:
        """The queues that are paused now."""
        member = self._running()
        owned = member.queues.owned.items()
        return {member.show(queue) for queue, buffer in owned if buffer.is_paused}

    def _check_assigned(self, queue: MessageQueue) -> None:
        """ClientError unless a queue is read."""
        if queue not in self._running().queues.owned:
            maybe = ", may be rebalancing" if self._reading.mode is Mode.SUBSCRIBE else ""
            raise ClientError(
                f"The message queue is not in assigned list{maybe}, message queue: {queue}"
            )

    def _move(self, queue: MessageQueue, offset: int) -> None:
        self._check_assigned(queue)
        self._running().queues.move(queue, offset)

    # --- Queues of topics -------------------------------------------------------------------------

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic, as the name server knows them now."""
        member = self._running()
        queues = await member.session.subscribe_queues(self._topic(topic), refresh=True)
        return sorted(member.show(queue) for queue in queues)

    def listen_to_queues(self, topic: str, listener: QueuesListener) -> None:
        """Have ``listener`` called when queues of a topic are added or removed.

        The consumer looks for them every ``queue_check_interval_ms``, whether it has subscribed to
        the topic or not.
        """
        check_function("listener", listener)

        def show(_: str, queues: set[MessageQueue]) -> None:
            listener(
                topic,
                {
                    queue._replace(topic=without_namespace(queue.topic, self._namespace))
                    for queue in queues
                },
            )

        self._reading.changes.listen(self._topic(topic), show)

    def _inner(self, queue: MessageQueue) -> MessageQueue:
        return check_queue(queue)._replace(topic=with_namespace(queue.topic, self._namespace))

    def _inner_queues(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        return [self._inner(queue) for queue in check_list("queues", queues, MessageQueue)]


class LiteMember(GroupMember[PrefetchQueue]):
    """A lite pull consumer that runs."""

    consume_type = ConsumeType.ACTIVELY

    def __init__(
        self, session: Session, group: str, options: LiteOptions, reading: Reading
    ) -> None:
        super().__init__(session, group, options, reading.subscriptions)
        self._reading = reading
        self._queue_check_ms = options.queue_check_interval_ms
        # As in RocketMQ: the result of consuming is not known, and counts as success.
        self._call_hooks = with_hooks(
            lambda messages, context: None,
            options.consume_hooks,
            group=group,
            timeout_ms=_NO_TIMEOUT_MS,
            clock=session.clock,
        )
        self.queues = LiteQueues(
            session,
            group,
            options,
            offsets=self.offsets,
            subscription_of=self._subscription_of,
            prepare=self._prepare,
            changed=self._queues_changed,
        )
        self._pulls = self.queues.pulls = self.make_pull_loop(
            self.queues,
            {
                "max_messages": options.pull_batch_size,
                "suspend_ms": options.broker_suspend_ms,
                "timeout_ms": options.pull_timeout_ms,
                "carries_subscription": True,
                "is_lite": True,
            },
        )

    @property
    def assignment(self) -> LiteQueues:
        return self.queues

    @property
    def pulls(self) -> PullLoop[PrefetchQueue]:
        return self._pulls

    async def join(self) -> None:
        await super().join()
        if self._reading.mode is Mode.ASSIGN:
            self.queues.read_only(self._reading.queues)
        changes = self._reading.changes
        await changes.check(self.session)
        self.tasks.periodic(
            "QueueCheck",
            self._queue_check_ms / 1000,
            partial(changes.check, self.session),
            first_seconds=min(_FIRST_QUEUE_CHECK_MS, self._queue_check_ms) / 1000,
        )

    async def _close_parts(self) -> None:
        await finish(self.queues.close, self.queues.write_offsets)

    # --- What the session calls -------------------------------------------------------------------

    def shared_subscriptions(self) -> list[SubscriptionData]:
        # Assigned queues do not concern the rest of the group.
        return self.subscriptions.all if self._reading.mode is Mode.SUBSCRIBE else []

    def subscribed_topics(self) -> Iterable[str]:
        if self._reading.mode is Mode.ASSIGN:
            return {queue.topic for queue in self._reading.queues}
        return super().subscribed_topics()

    async def rebalance(self) -> bool:
        return self._reading.mode is not Mode.SUBSCRIBE or await super().rebalance()

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """What ``mqadmin resetOffsetByTime`` asks of a consumer that is online."""
        wanted = {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
        await self.queues.reset(wanted)

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        return running_info(
            consume_type=self.consume_type,
            settings={},
            name_servers=self.session.name_servers,
            started_ms=self.started_ms,
            subscriptions=self.shared_subscriptions(),
            buffers=self.queues.owned.values(),
            offsets=self.offsets,
            rates=None,
            clock=self.session.clock,
            with_stacks=with_stacks,
        )

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """There is no listener to call."""
        raise no_consumer(self.group)

    # --- Inside -----------------------------------------------------------------------------------

    def _subscription_of(self, topic: str) -> SubscriptionData:
        return self.subscriptions.of(topic) or SubscriptionData(topic=topic)

    def _prepare(self, messages: list[ReceivedMessage]) -> None:
        namespace = self.session.options.namespace
        if namespace:
            for message in messages:
                message.topic = without_namespace(message.topic, namespace)
                message.queue = self.show(message.queue)
        self._call_hooks(messages, None)

    def _queues_changed(
        self, topic: str, queues: list[MessageQueue], ours: list[MessageQueue]
    ) -> None:
        listener = self._reading.assignment_listeners.get(topic)
        if listener is None:
            return
        everything, mine = ({self.show(queue) for queue in each} for each in (queues, ours))
        try:
            listener(self.session.without_namespace(topic), everything, mine)
        except Exception:
            _logger.exception("the listener for the assignment of %s failed", topic)
