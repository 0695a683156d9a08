"""What push and lite pull consumers share: their life cycle, and their part in the session.

``GroupConsumer`` is what users call: it starts and stops. ``GroupMember`` is what the session
calls while the consumer runs: it exists from start to stop. Both belong to the event loop.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from goddard.client import broker_api
from goddard.client.checks import check_consumer_group
from goddard.client.consume.assignment import Assignment
from goddard.client.consume.offsets import BrokerOffsets, LocalOffsets, Offsets
from goddard.client.consume.options import ConsumerOptions
from goddard.client.consume.pull import PullKeywords
from goddard.client.consume.pull_loop import PullHandler, PullLoop
from goddard.client.consume.queue_buffer import QueueBuffer
from goddard.client.consume.subscriptions import Expression, Subscriptions, is_sql
from goddard.client.errors import ClientError, NotRunningError, already_started, start_advice
from goddard.client.identity import ProcessGuard
from goddard.client.message import ReceivedMessage
from goddard.client.options import SessionOptions
from goddard.client.session import Session
from goddard.client.values import MessageQueue, ServiceState
from goddard.environment import Environment
from goddard.errors import GoddardError
from goddard.protocol.bodies import ConsumeFromWhere, ConsumeType
from goddard.protocol.bodies_client import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    SubscriptionData,
)
from goddard.protocol.names import is_retry_topic, with_namespace, without_namespace
from goddard.transport.tasks import Tasks, finish

_logger: Final = logging.getLogger("goddard.client")

B = TypeVar("B", bound=QueueBuffer)


class GroupMember(ABC, Generic[B]):
    """A consumer that runs, as its session sees it. Names are as brokers know them."""

    consume_type: ClassVar[ConsumeType]

    def __init__(
        self,
        session: Session,
        group: str,
        options: ConsumerOptions,
        subscriptions: Subscriptions,
    ) -> None:
        self.session = session
        self.group = group
        self.subscriptions = subscriptions
        self.tasks = Tasks(_logger, logging.DEBUG)
        self.started_ms = session.clock.now_ms()
        self.offsets: Offsets = (
            LocalOffsets(session.client_id, group, folder=options.offsets_folder)
            if options.is_broadcast
            else BrokerOffsets(session, group)
        )
        self._options = options
        # Brokers know this member; until then it takes no queues.
        self._has_joined = False

    @property
    @abstractmethod
    def assignment(self) -> Assignment[B]: ...

    @property
    @abstractmethod
    def pulls(self) -> PullLoop[B]: ...

    def make_pull_loop(
        self, handler: PullHandler[B], how: PullKeywords, interval_ms: int = 0
    ) -> PullLoop[B]:
        options = self._options
        return PullLoop(
            self.session,
            self.group,
            handler,
            self.offsets,
            how=how,
            consume_from=options.consume_from,
            timestamp_ms=options.start_timestamp_ms(self.started_ms),
            error_delay_ms=options.pull_error_delay_ms,
            interval_ms=interval_ms,
        )

    # --- Life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the parts that need no broker."""
        await self.offsets.load()

    async def join(self) -> None:
        """Make this member known to the brokers. BrokerError if one refuses an SQL92 condition."""
        for topic in sorted(self.subscribed_topics()):
            if not is_retry_topic(topic):
                await self.fetch_route(topic)
        await self._check_conditions()
        await self.heartbeat()
        self._has_joined = True

    async def close(self) -> None:
        """Leave the group and close everything."""
        self._has_joined = False
        await finish(
            self.tasks.stop,
            self._close_parts,
            partial(self.session.remove_consumer, self.group),
            self.session.stop,
        )

    @abstractmethod
    async def _close_parts(self) -> None:
        """Stop pulling and consuming, and write the offsets."""

    async def fetch_route(self, topic: str) -> None:
        """Fetch the route of a topic. It is no failure if the topic does not exist yet."""
        try:
            await self.session.refresh_route(topic)
        except GoddardError as error:
            _logger.warning("the route of %s is not known yet: %s", topic, error)
        else:
            if self.session.route(topic) is None:
                _logger.warning("the topic %s does not exist; it is consumed once it does", topic)

    async def _check_conditions(self) -> None:
        """Have brokers check SQL92 conditions: every pull with a wrong one would be refused."""
        for each in self.subscriptions.all:
            if not is_sql(each):
                continue
            queues = await self.session.subscribe_queues(each.topic)
            address, _ = await self.session.locate(queues[0])
            await broker_api.check_client_config(
                self.session,
                address,
                self.session.client_id,
                self.group,
                each,
                namespace=self.session.options.namespace or None,
                timeout_ms=self.session.options.api_timeout_ms,
            )

    async def heartbeat(self) -> list[str]:
        """Tell brokers the subscriptions; returns the topics of those that are new to them."""
        told = self.subscriptions.all
        await self.session.heartbeat()
        return self.subscriptions.mark_announced(told)

    def announce(self) -> None:
        """Tell brokers about changed subscriptions, and rebalance."""
        if self._has_joined:
            self.tasks.spawn(self._announce(), f"subscriptions of {self.group}")

    async def _announce(self) -> None:
        for topic in self.subscriptions.unannounced():
            await self.fetch_route(topic)
        self.pulls.restart(await self.heartbeat())
        # At once: the session rests for a second if it rebalanced just before the heartbeat.
        if not await self.rebalance():
            self.session.wake_rebalance()

    def show(self, queue: MessageQueue) -> MessageQueue:
        """A queue as its user knows it."""
        return queue._replace(topic=without_namespace(queue.topic, self.session.options.namespace))

    # --- What the session calls -------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=self._options.message_model,
            consume_from_where=ConsumeFromWhere(self._options.consume_from.value),
            subscription_data_set=self.shared_subscriptions(),
            unit_mode=self.session.options.unit_mode,
        )

    def shared_subscriptions(self) -> list[SubscriptionData]:
        """Those that the members of the group have in common."""
        return self.subscriptions.all

    def subscribed_topics(self) -> Iterable[str]:
        return tuple(self.subscriptions.topics)

    def route_changed(self) -> None:
        if self._has_joined:
            self.session.wake_rebalance()

    async def rebalance(self) -> bool:
        """Take and release queues; True if nothing is left to do."""
        if not self._has_joined:
            return True
        return await self.assignment.rebalance(self.subscriptions.topics)

    async def persist_offsets(self) -> None:
        if self._has_joined:
            # Includes queues that are being released: offsets of others are forgotten.
            await self.offsets.persist_all(self.assignment.owned.keys())

    @abstractmethod
    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None: ...

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        return self.offsets.table(topic)

    @abstractmethod
    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo: ...

    @abstractmethod
    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult: ...


M = TypeVar("M", bound=GroupMember[Any])


class GroupConsumer(ABC, Generic[M]):
    """A consumer as its user sees it. It starts and stops once."""

    # From RocketMQ's error texts: its name, and the text if it does not run.
    _kind: ClassVar[str]
    _not_running: ClassVar[str]

    def __init__(
        self, group: str, session_options: SessionOptions, environment: Environment
    ) -> None:
        check_consumer_group(group)
        # Must be the first attribute: it refuses pickling.
        self._guard = ProcessGuard()
        self._session_options = session_options
        self._namespace = session_options.namespace
        self._group = with_namespace(group, self._namespace)
        self._environment = environment
        self._state = ServiceState.CREATED
        self._subscriptions = Subscriptions()
        self._member: M | None = None

    @property
    def state(self) -> ServiceState:
        return self._state

    @property
    def client_id(self) -> str:
        return self._session_options.client_id

    @property
    def group(self) -> str:
        """The group as brokers know it: with the namespace, if there is one."""
        return self._group

    async def start(self) -> None:
        """Join the group and begin to consume. Raises if a broker refuses an SQL92 subscription.

        Topics may be subscribed to later. A consumer that has started gets all messages that are
        sent from then on, unless other members have to release queues first. It starts once.
        """
        self._guard.check()
        if self._state is not ServiceState.CREATED:
            raise already_started(self._kind, self._state.value)
        self._check_startable()
        self._state = ServiceState.START_FAILED
        session = Session.shared(self._session_options, environment=self._environment)
        await session.start()
        member = await self._add_to(session)
        try:
            await member.open()
            await member.join()
            self._member = member
            self._state = ServiceState.RUNNING
            _logger.info("the consumer [%s] start OK%s", self._group, self._start_details())
            await self._first_rebalance(member)
        except BaseException:
            # Not if it was stopped meanwhile.
            if self._state is not ServiceState.STOPPED:
                self._state = ServiceState.START_FAILED
                await member.close()
            raise

    async def _add_to(self, session: Session) -> M:
        try:
            member = self._make_member(session)
            try:
                session.add_consumer(self._group, member)
            except ClientError:
                # Another consumer of the process has the group; this one may start later.
                self._state = ServiceState.CREATED
                raise
        except BaseException:
            await session.stop()
            raise
        return member

    async def _first_rebalance(self, member: M) -> None:
        try:
            is_balanced = await member.rebalance()
            await member.pulls.wait_for_start_offsets(self._session_options.api_timeout_ms)
        except GoddardError as error:
            _logger.warning("the first rebalance of %s failed: %s", self._group, error)
            is_balanced = False
        if not is_balanced:
            member.session.wake_rebalance()

    @abstractmethod
    def _make_member(self, session: Session) -> M: ...

    def _check_startable(self) -> None:
        """Raise if something is missing."""

    def _start_details(self) -> str:
        return ""

    async def stop(self) -> None:
        """Leave the group, write the offsets and close everything. Does nothing unless started."""
        if self._state is not ServiceState.RUNNING or self._member is None:
            return
        self._member.session.check_loop()
        self._state = ServiceState.STOPPED
        await self._member.close()
        _logger.info("the consumer [%s] shutdown OK", self._group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _running(self) -> M:
        """The member; ForkedError in another process, NotRunningError unless it runs."""
        self._guard.check()
        if self._state is not ServiceState.RUNNING or self._member is None:
            raise NotRunningError(
                self._not_running.format(state=self._state.value),
                advice=start_advice(self._state),
            )
        self._member.session.check_loop()
        return self._member

    def _subscribe(self, name: str, expression: Expression) -> None:
        self._subscriptions.set(name, expression, self._environment.clock.now_ms())

    def _announce(self) -> None:
        if self._member is not None and self._state is ServiceState.RUNNING:
            self._member.announce()
