"""What the driver asks of the cluster: which queues there are, how far they reach, group offsets.

A Cluster is used from one thread by plain calls. It has an event loop of its own, which runs only
while a question is asked, so nothing goes on behind Spark's back. A server that does not answer is
asked again as often as the options say; what remains is one error in seconds, never a query that
hangs.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final, Self, TypeVar

from goddard.client import broker_api
from goddard.client.consume.pull import pull_command
from goddard.client.consume.subscriptions import subscription
from goddard.client.errors import (
    BatchFailedError,
    BrokerError,
    BrokerNotFoundError,
    ClientCode,
    NameServerError,
    NoRouteError,
    SendFailedError,
)
from goddard.client.options import session_options
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError, GoddardError, RemotingError
from goddard.protocol.bodies import TopicList
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.names import (
    AUTO_CREATE_TOPIC,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
)
from goddard.spark.columns import RecordColumns, record_starts
from goddard.spark.offsets import EARLIEST, LATEST, Offsets
from goddard.spark.options import Connecting, Place, SourceOptions, Where
from goddard.spark.timesearch import first_at
from goddard.transport.loop import new_event_loop

_logger: Final = logging.getLogger("goddard.spark")

# Questions under way at once; a broker of thousands of queues is not to be flooded.
_AT_ONCE: Final = 64

_PASSING: Final[frozenset[int]] = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ClientCode.CONNECT_BROKER,
        ClientCode.ACCESS_BROKER_TIMEOUT,
        ClientCode.BROKER_NOT_EXIST,
    }
)

_NOTHING_THERE: Final = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
    }
)

# Pulls of readers that name no group; brokers insist on one.
READERS_GROUP: Final = "goddard-spark"

T = TypeVar("T")


class BehindError(GoddardError):
    """A slave was asked for what it does not have yet."""


def is_passing(error: GoddardError) -> bool:
    """Whether a failure may be gone at the next try."""
    if isinstance(error, BatchFailedError):
        return isinstance(error.__cause__, GoddardError) and is_passing(error.__cause__)
    if isinstance(error, BrokerError) and error.refuses_conditions:
        return False
    if isinstance(error, (BrokerError, SendFailedError)):
        return error.code in _PASSING
    return isinstance(
        error, (BehindError, BrokerNotFoundError, NameServerError, NoRouteError, RemotingError)
    )


async def tried(
    connecting: Connecting, ask: Callable[[], Awaitable[T]], *, patience_ms: int = 0
) -> T:
    """Ask until an answer comes; give up when both the tries and the patience are used up."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience_ms / 1000
    left = connecting.retries
    while True:
        try:
            return await ask()
        except GoddardError as error:
            if not is_passing(error) or (left <= 0 and loop.time() >= until):
                raise
            left -= 1
            _logger.warning("asked again in %d ms: %s", connecting.retry_interval_ms, error)
            await asyncio.sleep(connecting.retry_interval_ms / 1000)


class Cluster:
    """The driver's end; see the module's text."""

    def __init__(self, connecting: Connecting) -> None:
        self._connecting = connecting
        self._runner = asyncio.Runner(loop_factory=new_event_loop)
        self._session: Session | None = None
        # Topics that match a pattern and cannot be read.
        self._left_out: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._session is not None:
            self._runner.run(self._session.stop())
            self._session = None
        self._runner.close()

    def queues(self, options: SourceOptions, *, is_running: bool = False) -> list[MessageQueue]:
        """The queues to read now.

        ConfigError for an assigned one that does not exist, NoRouteError for such a topic. To a
        query that is running already they are away, and left out, unless nothing else is left.
        ConfigError as well for a static topic, but one that only matches a pattern is left out.
        """
        return self._run(self._queues(options, is_running=is_running))

    def bounds(self, queues: Iterable[MessageQueue]) -> tuple[Offsets, Offsets]:
        """The earliest and the latest offset of each queue whose broker is there."""
        return self._run(self._bounds(list(queues)))

    def latest(self, queues: Iterable[MessageQueue]) -> Offsets:
        """The latest offset of each queue whose broker is there."""
        return self._run(self._each(list(queues), broker_api.max_offset))

    def latest_of_present(
        self, queues: Iterable[MessageQueue], at_least: Mapping[MessageQueue, int]
    ) -> Offsets:
        """The same of the queues whose brokers answer, each asked once; an error if none does.

        A slave may be behind: what it says counts only beyond ``at_least``.
        """
        return self._run(self._latest_of_present(list(queues), at_least))

    def resolve(
        self,
        place: Place,
        bounds: tuple[Offsets, Offsets],
        *,
        group: str | None = None,
        fails_without_match: bool = False,
    ) -> Offsets:
        """The offsets that a place means, within the bounds."""
        return self._run(self._resolve(place, bounds, group, fails_without_match))

    def group_offsets(self, group: str, queues: Iterable[MessageQueue]) -> Offsets:
        """Where a group stands, in the queues where it stands anywhere."""
        return self._run(self._group_offsets(group, list(queues)))

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> Offsets:
        """Say how far a group has read, so that tools show its lag; what of it was heard.

        Best effort, never an error, and each broker is asked once. One that will not have it has
        heard it too: it is there, and has messages to read.
        """
        return self._run(self._commit(group, offsets))

    def check_writing(self, topic: str | None) -> None:
        """An error unless a name server answers and, if the topic is known, one of its brokers."""
        self._run(tried(self._connecting, partial(self._check_writing, topic)))

    # On the loop

    def _run(self, asked: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asked)

    async def _started(self) -> Session:
        if self._session is None:
            connecting = self._connecting
            options = session_options(connecting.name_servers, connecting.keywords).for_process()
            session = Session.shared(options)
            await session.start()
            self._session = session
        return self._session

    async def _queues(self, options: SourceOptions, *, is_running: bool) -> list[MessageQueue]:
        topics: Iterable[str] = options.topics
        if options.pattern is not None:
            names = await tried(self._connecting, self._topics)
            topics = [
                name
                for name in names
                if options.pattern.fullmatch(name)
                and (options.includes_system_topics or not _is_internal(name))
            ]
            if not topics and not is_running:
                _logger.warning("no topic matches %s yet", options.pattern.pattern)
        session = await self._started()

        async def of_topic(topic: str) -> list[MessageQueue]:
            wire_name = session.with_namespace(topic)
            try:
                found = await session.subscribe_queues(wire_name, refresh=True)
            except NoRouteError as error:
                # That nobody answers says more than that there is no route.
                if isinstance(error.__cause__, GoddardError):
                    raise error.__cause__ from None
                raise
            route = session.route(wire_name)
            if route is not None and route.topic_queue_mapping_by_broker:
                if options.pattern is None:
                    raise ConfigError(_static(topic))
                if topic not in self._left_out:
                    self._left_out.add(topic)
                    _logger.warning("left out: %s", _static(topic))
                return []
            return [queue._replace(topic=topic) for queue in found]

        asked = (tried(self._connecting, partial(of_topic, topic)) for topic in topics)
        if is_running:
            lists = await self._those_that_answer(asked)
        else:
            lists = await self._together(asked)
        queues = {queue for found in lists for queue in found}
        if options.assigned:
            missing = options.assigned - queues
            if missing and not is_running:
                raise ConfigError(f"assign names {min(missing)}, which does not exist")
            queues &= options.assigned
        return sorted(queues)

    async def _topics(self) -> list[str]:
        session = await self._started()
        response = await session.request_name_server(
            RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
            session.options.api_timeout_ms,
        )
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark)
        found = await broker_api.read(response, TopicList)
        namespace = session.options.namespace
        return sorted(
            session.without_namespace(name)
            for name in found.topic_list
            if not namespace or session.without_namespace(name) != name
        )

    async def _those_that_answer(self, asked: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """The answers that came; the first failure if it will not pass, or if there are only
        failures."""

        async def caught(question: Coroutine[Any, Any, T]) -> T | GoddardError:
            try:
                return await question
            except GoddardError as error:
                if not is_passing(error):
                    raise
                return error

        outcomes = await self._together(caught(question) for question in asked)
        answers = [outcome for outcome in outcomes if not isinstance(outcome, GoddardError)]
        for outcome in outcomes:
            if isinstance(outcome, GoddardError) and not answers:
                raise outcome
        return answers

    async def _latest_of_present(
        self, queues: list[MessageQueue], at_least: Mapping[MessageQueue, int]
    ) -> Offsets:
        timeout_ms = self._connecting.request_timeout_ms

        async def ask(queue: MessageQueue) -> tuple[MessageQueue, int]:
            session, address, wire_queue = await self._found(queue)
            latest = await broker_api.max_offset(
                session, address, wire_queue, timeout_ms=timeout_ms
            )
            if session.find_broker(queue.broker_name, only_this=True) is None:
                latest = max(latest, at_least.get(queue, latest))
            return queue, latest

        return dict(await self._those_that_answer(ask(queue) for queue in queues))

    async def _check_writing(self, topic: str | None) -> None:
        session = await self._started()
        if topic is None:
            await session.refresh_route(AUTO_CREATE_TOPIC)
            return
        try:
            route = await session.publish_route(session.with_namespace(topic))
        except NoRouteError as error:
            if isinstance(error.__cause__, GoddardError):
                raise error.__cause__ from None
            raise
        one_of_each = {queue.broker_name: queue for queue in route.queues}

        async def reach(queue: MessageQueue) -> None:
            address = session.broker_address(queue.broker_name)
            if address is None:
                raise BrokerNotFoundError(queue.broker_name)
            # Whatever it says to that: it is there.
            with contextlib.suppress(BrokerError):
                await broker_api.max_offset(
                    session, address, queue, timeout_ms=self._connecting.request_timeout_ms
                )

        # Producers go round brokers that are away.
        await self._those_that_answer(reach(queue) for queue in one_of_each.values())

    async def _bounds(self, queues: list[MessageQueue]) -> tuple[Offsets, Offsets]:
        earliest = await self._each(queues, broker_api.min_offset)
        latest = await self._each(queues, broker_api.max_offset)
        # Between the two questions messages may have been deleted.
        return earliest, {queue: max(end, earliest.get(queue, 0)) for queue, end in latest.items()}

    async def _each(
        self, queues: list[MessageQueue], ask: Callable[..., Awaitable[int]]
    ) -> Offsets:
        timeout_ms = self._connecting.request_timeout_ms
        numbers = await self._together(
            self._of_queue(
                queue,
                lambda session, address, wire_queue: ask(
                    session, address, wire_queue, timeout_ms=timeout_ms
                ),
            )
            for queue in queues
        )
        return dict(zip(queues, numbers, strict=True))

    async def _of_queue(
        self,
        queue: MessageQueue,
        ask: Callable[[Session, str, MessageQueue], Awaitable[T]],
    ) -> T:
        """Ask the broker of a queue, its master if that is there."""

        async def once() -> T:
            return await ask(*await self._found(queue))

        return await tried(self._connecting, once)

    async def _found(self, queue: MessageQueue) -> tuple[Session, str, MessageQueue]:
        """The address of a queue's broker, and the queue as brokers know it."""
        session = await self._started()
        wire_queue = queue._replace(topic=session.with_namespace(queue.topic))
        found = session.find_broker(queue.broker_name)
        if found is None:
            await session.refresh_route(wire_queue.topic)
            found = session.find_broker(queue.broker_name)
        if found is None:
            raise BrokerNotFoundError(queue.broker_name)
        return session, found[0], wire_queue

    async def _together(self, asked: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        room = asyncio.Semaphore(_AT_ONCE)

        async def in_turn(question: Coroutine[Any, Any, T]) -> T:
            async with room:
                return await question

        tasks = [asyncio.ensure_future(in_turn(question)) for question in asked]
        try:
            return await asyncio.gather(*tasks)
        finally:
            # The first failure is the answer; nobody waits for the others any more.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _resolve(
        self,
        place: Place,
        bounds: tuple[Offsets, Offsets],
        group: str | None,
        fails_without_match: bool,
    ) -> Offsets:
        earliest, latest = bounds
        offsets = await self._plain(place, bounds, group)
        unknown = _named_by_timestamp(place) - _names(latest)
        if unknown:
            raise ConfigError(
                f"the timestamps name {min(map(str, unknown))}, which is not among those to read"
            )
        times = {
            queue: time_ms
            for queue in latest
            if (time_ms := _timestamp_of(place, queue)) is not None
        }
        found = await self._together(
            self._at_time(queue, time_ms, earliest[queue]) for queue, time_ms in times.items()
        )
        for queue, offset in zip(times, found, strict=True):
            if offset >= latest[queue] and fails_without_match:
                raise ConfigError(
                    f"no message of {queue} was stored at {times[queue]} ms or later; with "
                    "startingOffsetsByTimestampStrategy=latest reading would start at its end"
                )
            offsets[queue] = offset
        return {
            queue: min(max(offset, earliest[queue]), latest[queue])
            if queue in times or place.where is Where.GROUP
            else offset
            for queue, offset in offsets.items()
        }

    async def _at_time(self, queue: MessageQueue, time_ms: int, earliest: int) -> int:
        timeout_ms = self._connecting.request_timeout_ms

        async def ask(session: Session, address: str, wire_queue: MessageQueue) -> int:
            near = await broker_api.search_offset(
                session, address, wire_queue, time_ms, timeout_ms=timeout_ms
            )

            async def times_from(offset: int, count: int) -> list[int]:
                pull = pull_command(
                    session.with_namespace(READERS_GROUP),
                    wire_queue,
                    offset,
                    subscription(wire_queue.topic, "*", 0),
                    max_messages=count,
                    suspend_ms=0,
                    carries_subscription=True,
                )
                response = await session.request(address, pull, timeout_ms)
                if response.code in _NOTHING_THERE:
                    return []
                if response.code != ResponseCode.SUCCESS:
                    raise BrokerError(response.code, response.remark, address)
                data = bytes(response.body)
                times: list[int] = RecordColumns(data, record_starts(data)).store_times_ms.tolist()
                return times

            return await first_at(times_from, time_ms, near, earliest)

        return await self._of_queue(queue, ask)

    async def _plain(
        self, place: Place, bounds: tuple[Offsets, Offsets], group: str | None
    ) -> Offsets:
        """The offsets of a place but for its timestamps."""
        earliest, latest = bounds
        offsets = dict(latest if place.where is Where.LATEST else earliest)
        if place.where is Where.GROUP and group is not None:
            offsets |= await self._group_offsets(group, list(latest))
        unknown = place.numbers.keys() - latest.keys()
        if unknown:
            raise ConfigError(f"the offsets name {min(unknown)}, which is not among those to read")
        missing = {queue for queue in latest if _timestamp_of(place, queue) is None}
        missing -= place.numbers.keys()
        if place.numbers and missing:
            others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise ConfigError(
                f"the offsets do not name {min(missing)}{others}; name every queue, with "
                f"{EARLIEST} for its earliest offset and {LATEST} for its latest"
            )
        for queue, number in place.numbers.items():
            marks = {EARLIEST: earliest[queue], LATEST: latest[queue]}
            offsets[queue] = marks.get(number, number)
        return offsets

    async def _group_offsets(self, group: str, queues: list[MessageQueue]) -> Offsets:
        session = await self._started()
        wire_group = session.with_namespace(group)
        timeout_ms = self._connecting.request_timeout_ms
        numbers = await self._together(
            self._of_queue(
                queue,
                lambda session, address, wire_queue: broker_api.query_consumer_offset(
                    session,
                    address,
                    wire_group,
                    wire_queue,
                    set_zero_if_not_found=False,
                    timeout_ms=timeout_ms,
                ),
            )
            for queue in queues
        )
        return {
            queue: number
            for queue, number in zip(queues, numbers, strict=True)
            if number is not None and number >= 0
        }

    async def _commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> Offsets:
        timeout_ms = self._connecting.request_timeout_ms

        async def say(queue: MessageQueue, number: int) -> bool:
            try:
                session, address, wire_queue = await self._found(queue)
                wire_group = session.with_namespace(group)
                await broker_api.update_consumer_offset(
                    session, address, wire_group, wire_queue, number, timeout_ms=timeout_ms
                )
            except GoddardError as error:
                _logger.warning("the offset of %s in %s is not committed: %s", group, queue, error)
                return not is_passing(error)
            return True

        done = await self._together(say(queue, number) for queue, number in offsets.items())
        return {
            queue: offsets[queue] for queue, is_done in zip(offsets, done, strict=True) if is_done
        }


def _static(topic: str) -> str:
    return (
        f"{topic} is a static topic: its queues are logical ones, which move from broker to broker "
        "and cannot be followed here; read a plain topic that it is copied to, or its brokers' "
        "files by the format rocketmq-log"
    )


def _is_internal(topic: str) -> bool:
    return is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic)


def _names(queues: Iterable[MessageQueue]) -> set[str | MessageQueue]:
    """Queues and their topics."""
    return {name for queue in queues for name in (queue, queue.topic)}


def _named_by_timestamp(place: Place) -> set[str | MessageQueue]:
    named: set[str | MessageQueue] = set()
    for topic, times in place.by_timestamp.items():
        named |= times.keys() if isinstance(times, dict) else {topic}
    return named


def _timestamp_of(place: Place, queue: MessageQueue) -> int | None:
    if place.timestamp_ms is not None:
        return place.timestamp_ms
    by_topic = place.by_timestamp.get(queue.topic)
    if isinstance(by_topic, dict):
        return by_topic.get(queue)
    return by_topic
