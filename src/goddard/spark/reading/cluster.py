"""The driver's requests to the cluster: queues, earliest and latest offsets, group offsets.

A ClusterClient is synchronous and used from one thread. It has its own event loop, which runs only
during a call, so no work continues between calls. A request that fails is retried as often as the
options say; then it raises an error. A query never hangs on an unreachable server.
"""

import asyncio
import contextlib
import logging
import struct
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar

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
from goddard.protocol.bodies_admin import TopicStatsTable
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.admin import GetTopicStatsRequest
from goddard.protocol.names import AUTO_CREATE_TOPIC
from goddard.spark.columns import RecordColumns, record_starts
from goddard.spark.options import ConnectionOptions, OffsetMode, OffsetSpec, SourceOptions
from goddard.spark.reading.offsets import EARLIEST, LATEST, Offsets
from goddard.spark.reading.time_search import first_offset_at
from goddard.transport.loop import new_event_loop

_logger: Final = logging.getLogger("goddard.spark")

# Limits the load on a broker with thousands of queues.
_MAX_CONCURRENT_REQUESTS: Final = 64

_RETRIABLE_CODES: Final[frozenset[int]] = frozenset(
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

_EMPTY_PULL_CODES: Final = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
    }
)

_QUEUE_OFFSET: Final = struct.Struct(">20xq")

# Messages that show the size of the others of a queue.
_SAMPLED_MESSAGES: Final = 32

# The group of pull requests when the options name none; brokers require one.
DEFAULT_GROUP: Final = "goddard-spark"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The earliest and the latest offset of queues, and the store time of their last messages.

    Without a last message, or if a slave answered, there is no store time.
    """

    earliest: Offsets
    latest: Offsets
    last_stored_ms: Offsets

    def only(self, queues: Iterable[MessageQueue]) -> "Bounds":
        chosen = set(queues)
        earliest, latest, stored = (
            {queue: number for queue, number in numbers.items() if queue in chosen}
            for numbers in (self.earliest, self.latest, self.last_stored_ms)
        )
        return Bounds(earliest, latest, stored)


class _QueueStats(NamedTuple):
    """What a broker says about a queue. ``is_slave``: it may be behind its master."""

    earliest: int
    latest: int
    last_stored_ms: int | None
    is_slave: bool


class ReplicaBehindError(GoddardError):
    """A slave does not have the requested messages yet."""


def is_retriable(error: GoddardError) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, BatchFailedError):
        return isinstance(error.__cause__, GoddardError) and is_retriable(error.__cause__)
    if isinstance(error, BrokerError) and error.is_sql92_disabled:
        return False
    if isinstance(error, (BrokerError, SendFailedError)):
        return error.code in _RETRIABLE_CODES
    return isinstance(
        error,
        (ReplicaBehindError, BrokerNotFoundError, NameServerError, NoRouteError, RemotingError),
    )


async def with_retries(
    connection: ConnectionOptions, request: Callable[[], Awaitable[T]], *, retry_for_ms: int = 0
) -> T:
    """Retry a request until the number of retries is used up and ``retry_for_ms`` have passed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + retry_for_ms / 1000
    retries_left = connection.retries
    while True:
        try:
            return await request()
        except GoddardError as error:
            if not is_retriable(error) or (retries_left <= 0 and loop.time() >= deadline):
                raise
            retries_left -= 1
            _logger.warning(
                "request failed, retrying in %d ms: %s", connection.retry_interval_ms, error
            )
            await asyncio.sleep(connection.retry_interval_ms / 1000)


class ClusterClient:
    """The driver's client; see the module docstring."""

    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        self._runner = asyncio.Runner(loop_factory=new_event_loop)
        self._session: Session | None = None
        # Static topics that match the pattern; each is warned about once.
        self._skipped_topics: set[str] = set()
        # Topics and brokers that refused the request for statistics.
        self._without_stats: set[tuple[str, str]] = set()

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

        When a query starts, an assigned queue that does not exist raises ConfigError, and a topic
        that does not exist raises NoRouteError. While a query is running, both are skipped; an
        error is raised only if no topic answers. A static topic raises ConfigError if it is named,
        and is skipped if it only matches a pattern.
        """
        return self._run(self._queues(options, is_running=is_running))

    def bounds(self, queues: Iterable[MessageQueue]) -> Bounds:
        """The bounds of each queue, with one request for each topic and broker."""
        return self._run(self._bounds(list(queues), is_retried=True))

    def bounds_of_reachable(
        self, queues: Iterable[MessageQueue], at_least: Mapping[MessageQueue, int]
    ) -> Bounds:
        """The bounds of the queues whose brokers answer, without retries.

        Raises an error if no broker answers. A slave may be behind its master, so its latest offset
        is raised to at least the queue's offset in ``at_least``.
        """
        return self._run(self._bounds(list(queues), at_least, is_retried=False))

    def store_times(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        """The store time of the message at each offset.

        None if the master has no message there; a queue whose broker does not answer is left out.
        """
        return self._run(self._store_times(positions))

    def record_bytes(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """The mean size of some stored messages from each offset on.

        Queues without a message there, or whose broker does not answer, are left out.
        """
        return self._run(self._record_bytes(positions))

    def offsets_after(self, times_ms: Mapping[MessageQueue, int], bounds: Bounds) -> Offsets:
        """The offset of the first message of each queue that was stored after a time."""
        return self._run(self._offsets_after(times_ms, bounds))

    def resolve(
        self,
        spec: OffsetSpec,
        bounds: Bounds,
        *,
        group: str | None = None,
        fails_without_match: bool = False,
    ) -> Offsets:
        """The offsets that a spec stands for, limited to the bounds."""
        return self._run(self._resolve(spec, bounds, group, fails_without_match))

    def group_offsets(self, group: str, queues: Iterable[MessageQueue]) -> Offsets:
        """The committed offsets of a group; queues without one are left out."""
        return self._run(self._group_offsets(group, list(queues)))

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> Offsets:
        """Commit offsets, so that tools show the lag of the group. Returns what brokers answered.

        Best effort: failures are logged, and nothing is retried. A broker that rejects a commit
        counts as having answered, because it is reachable and its messages can be read.
        """
        return self._run(self._commit(group, offsets))

    def check_writable(self, topic: str | None) -> None:
        """Raise an error if no name server answers or, with a topic, none of its brokers."""
        self._run(with_retries(self._connection, partial(self._check_writable, topic)))

    # Coroutines, run on this client's loop

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    async def _get_session(self) -> Session:
        if self._session is None:
            connection = self._connection
            options = session_options(connection.name_servers, connection.keywords).for_process()
            session = Session.shared(options)
            await session.start()
            self._session = session
        return self._session

    async def _queues(self, options: SourceOptions, *, is_running: bool) -> list[MessageQueue]:
        topics: Iterable[str] = options.topics
        if options.pattern is not None:
            names = await with_retries(self._connection, self._topics)
            topics = [name for name in names if options.selects_topic(name)]
            if not topics and not is_running:
                _logger.warning("no topic matches %s yet", options.pattern.pattern)
        session = await self._get_session()

        async def queues_of(topic: str) -> list[MessageQueue]:
            wire_name = session.with_namespace(topic)
            try:
                found = await session.subscribe_queues(wire_name, refresh=True)
            except NoRouteError as error:
                # An unreachable name server is a more precise error than a missing route.
                if isinstance(error.__cause__, GoddardError):
                    raise error.__cause__ from None
                raise
            route = session.route(wire_name)
            if route is not None and route.topic_queue_mapping_by_broker:
                if options.pattern is None:
                    raise ConfigError(_static_topic_message(topic))
                if topic not in self._skipped_topics:
                    self._skipped_topics.add(topic)
                    _logger.warning("topic skipped: %s", _static_topic_message(topic))
                return []
            return [queue._replace(topic=topic) for queue in found]

        lookups = (with_retries(self._connection, partial(queues_of, topic)) for topic in topics)
        if is_running:
            lists = await self._gather_successes(lookups)
        else:
            lists = await self._gather(lookups)
        queues = {queue for found in lists for queue in found}
        if options.assigned:
            missing = options.assigned - queues
            if missing and not is_running:
                raise ConfigError(f"assign names {min(missing)}, which does not exist")
            queues &= options.assigned
        return sorted(queues)

    async def _topics(self) -> list[str]:
        session = await self._get_session()
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

    async def _gather_successes(self, requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """The results of the requests that succeed.

        Raises the first error that is not retriable, or the first error if all requests fail.
        """
        outcomes = await self._gather_outcomes(requests)
        results = [outcome for outcome in outcomes if not isinstance(outcome, GoddardError)]
        for outcome in outcomes:
            if isinstance(outcome, GoddardError) and not results:
                raise outcome
        return results

    async def _gather_outcomes(
        self, requests: Iterable[Coroutine[Any, Any, T]]
    ) -> list[T | GoddardError]:
        """The result of each request, or its retriable error; raises an error that is not."""

        async def result_or_error(request: Coroutine[Any, Any, T]) -> T | GoddardError:
            try:
                return await request
            except GoddardError as error:
                if not is_retriable(error):
                    raise
                return error

        return await self._gather(result_or_error(request) for request in requests)

    async def _bounds(
        self,
        queues: list[MessageQueue],
        at_least: Mapping[MessageQueue, int] | None = None,
        *,
        is_retried: bool,
    ) -> Bounds:
        groups: dict[tuple[str, str], list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            groups[queue.topic, queue.broker_name].append(queue)

        async def with_or_without_retries(request: Callable[[], Awaitable[T]]) -> T:
            return await (with_retries(self._connection, request) if is_retried else request())

        gather = self._gather if is_retried else self._gather_successes
        answers = await gather(
            with_or_without_retries(partial(self._topic_stats, group)) for group in groups.values()
        )
        stats = {queue: found for answer in answers for queue, found in answer.items()}
        single = [queue for queue, found in stats.items() if found is None]
        if single:
            stats |= await gather(
                with_or_without_retries(partial(self._queue_stats, queue)) for queue in single
            )
        bounds = Bounds({}, {}, {})
        for queue, found in stats.items():
            if found is None:
                continue
            bounds.earliest[queue] = found.earliest
            # The queue may have changed between two requests.
            bounds.latest[queue] = max(found.latest, found.earliest)
            if found.is_slave and at_least is not None:
                bounds.latest[queue] = max(found.latest, at_least.get(queue, 0))
            elif found.last_stored_ms is not None:
                bounds.last_stored_ms[queue] = found.last_stored_ms
        return bounds

    async def _topic_stats(
        self, queues: list[MessageQueue]
    ) -> dict[MessageQueue, _QueueStats | None]:
        """The statistics of queues of one topic and broker; None where a queue must be asked for.

        A broker may refuse this request by its access control, and lists only queues to write to.
        """
        session, address, is_slave, wire_queue = await self._locate(queues[0])
        key = (wire_queue.topic, wire_queue.broker_name)
        if key in self._without_stats:
            return dict.fromkeys(queues)
        header = GetTopicStatsRequest(topic=wire_queue.topic)
        try:
            response = await session.call(
                address,
                broker_api.command(RequestCode.GET_TOPIC_STATS_INFO, header),
                self._connection.request_timeout_ms,
            )
        except BrokerError as error:
            if is_retriable(error):
                raise
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                self._without_stats.add(key)
            return dict.fromkeys(queues)
        table = (await broker_api.read(response, TopicStatsTable)).offset_table
        found = {queue.queue_id: offsets for queue, offsets in table.items()}
        stats: dict[MessageQueue, _QueueStats | None] = dict.fromkeys(queues)
        for queue in queues:
            if (offsets := found.get(queue.queue_id)) is not None:
                stored_ms: int | None = offsets.last_update_timestamp
                if is_slave or offsets.max_offset <= 0 or offsets.last_update_timestamp <= 0:
                    stored_ms = None
                stats[queue] = _QueueStats(
                    offsets.min_offset, offsets.max_offset, stored_ms, is_slave
                )
        return stats

    async def _queue_stats(self, queue: MessageQueue) -> tuple[MessageQueue, _QueueStats]:
        timeout_ms = self._connection.request_timeout_ms
        session, address, is_slave, wire_queue = await self._locate(queue)
        earliest = await broker_api.min_offset(session, address, wire_queue, timeout_ms=timeout_ms)
        latest = await broker_api.max_offset(session, address, wire_queue, timeout_ms=timeout_ms)
        return queue, _QueueStats(earliest, latest, None, is_slave)

    async def _store_times(
        self, positions: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int | None]:
        async def query(queue: MessageQueue, offset: int) -> tuple[MessageQueue, int | None]:
            session, address, is_slave, wire_queue = await self._locate(queue)
            if is_slave:
                return queue, None
            try:
                data = await self._pull(session, address, wire_queue, offset, 1)
            except BrokerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                return queue, None
            starts = record_starts(data)
            if not starts or _QUEUE_OFFSET.unpack_from(data, starts[0])[0] != offset:
                return queue, None
            times: list[int] = RecordColumns(data, starts).store_times_ms.tolist()
            return queue, times[0]

        outcomes = await self._gather_outcomes(
            query(queue, offset) for queue, offset in positions.items()
        )
        return dict(outcome for outcome in outcomes if not isinstance(outcome, GoddardError))

    async def _record_bytes(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        async def query(queue: MessageQueue, offset: int) -> tuple[MessageQueue, int]:
            session, address, _, wire_queue = await self._locate(queue)
            data = await self._pull(session, address, wire_queue, offset, _SAMPLED_MESSAGES)
            return queue, len(data) // max(1, len(record_starts(data)))

        outcomes = await self._gather_outcomes(
            query(queue, offset) for queue, offset in positions.items()
        )
        found = [outcome for outcome in outcomes if not isinstance(outcome, GoddardError)]
        return {queue: size for queue, size in found if size}

    async def _offsets_after(self, times_ms: Mapping[MessageQueue, int], bounds: Bounds) -> Offsets:
        found = await self._gather(
            self._offset_at_time(queue, time_ms + 1, bounds.earliest[queue])
            for queue, time_ms in times_ms.items()
        )
        return {
            queue: min(offset, bounds.latest[queue])
            for queue, offset in zip(times_ms, found, strict=True)
        }

    async def _check_writable(self, topic: str | None) -> None:
        session = await self._get_session()
        if topic is None:
            await session.refresh_route(AUTO_CREATE_TOPIC)
            return
        try:
            route = await session.publish_route(session.with_namespace(topic))
        except NoRouteError as error:
            if isinstance(error.__cause__, GoddardError):
                raise error.__cause__ from None
            raise
        queue_by_broker = {queue.broker_name: queue for queue in route.queues}

        async def contact(queue: MessageQueue) -> None:
            address = session.broker_address(queue.broker_name)
            if address is None:
                raise BrokerNotFoundError(queue.broker_name)
            # An error response also shows that the broker is reachable.
            with contextlib.suppress(BrokerError):
                await broker_api.max_offset(
                    session, address, queue, timeout_ms=self._connection.request_timeout_ms
                )

        # One reachable broker is enough: producers send to it instead of the others.
        await self._gather_successes(contact(queue) for queue in queue_by_broker.values())

    async def _request_broker(
        self,
        queue: MessageQueue,
        request: Callable[[Session, str, MessageQueue], Awaitable[T]],
    ) -> T:
        """Send a request to the broker of a queue, preferably the master, with retries."""

        async def attempt() -> T:
            session, address, _, wire_queue = await self._locate(queue)
            return await request(session, address, wire_queue)

        return await with_retries(self._connection, attempt)

    async def _locate(self, queue: MessageQueue) -> tuple[Session, str, bool, MessageQueue]:
        """The address of a queue's broker, whether it is a slave, and the queue with its topic's
        name on the wire.
        """
        session = await self._get_session()
        wire_queue = queue._replace(topic=session.with_namespace(queue.topic))
        address, is_slave = await session.locate(wire_queue)
        return session, address, is_slave, wire_queue

    async def _pull(
        self, session: Session, address: str, wire_queue: MessageQueue, offset: int, count: int
    ) -> bytes:
        """The records of one pull; empty if there are none at the offset."""
        pull = pull_command(
            session.with_namespace(DEFAULT_GROUP),
            wire_queue,
            offset,
            subscription(wire_queue.topic, "*", 0),
            max_messages=count,
            suspend_ms=0,
            carries_subscription=True,
        )
        response = await session.request(address, pull, self._connection.request_timeout_ms)
        if response.code in _EMPTY_PULL_CODES:
            return b""
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, address)
        return bytes(response.body)

    async def _gather(self, requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Run requests concurrently, up to the limit; the first error cancels the rest."""
        permits = asyncio.Semaphore(_MAX_CONCURRENT_REQUESTS)

        async def limited(request: Coroutine[Any, Any, T]) -> T:
            async with permits:
                return await request

        tasks = [asyncio.ensure_future(limited(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _resolve(
        self,
        spec: OffsetSpec,
        bounds: Bounds,
        group: str | None,
        fails_without_match: bool,
    ) -> Offsets:
        earliest, latest = bounds.earliest, bounds.latest
        offsets = await self._resolve_without_timestamps(spec, bounds, group)
        unknown = _named_by_timestamp(spec) - _queues_and_topics(latest)
        if unknown:
            raise ConfigError(
                f"the timestamps name {min(map(str, unknown))}, which this query does not read"
            )
        times = {
            queue: time_ms
            for queue in latest
            if (time_ms := _timestamp_of(spec, queue)) is not None
        }
        found = await self._gather(
            self._offset_at_time(queue, time_ms, earliest[queue])
            for queue, time_ms in times.items()
        )
        for queue, offset in zip(times, found, strict=True):
            if offset >= latest[queue] and fails_without_match:
                raise ConfigError(
                    f"no message of {queue} was stored at {times[queue]} ms or later; set "
                    "startingOffsetsByTimestampStrategy=latest to start at the end of the queue"
                )
            offsets[queue] = offset
        return {
            queue: min(max(offset, earliest[queue]), latest[queue])
            if queue in times or spec.mode is OffsetMode.GROUP
            else offset
            for queue, offset in offsets.items()
        }

    async def _offset_at_time(self, queue: MessageQueue, time_ms: int, earliest: int) -> int:
        timeout_ms = self._connection.request_timeout_ms

        async def search(session: Session, address: str, wire_queue: MessageQueue) -> int:
            approximate = await broker_api.search_offset(
                session, address, wire_queue, time_ms, timeout_ms=timeout_ms
            )

            async def store_times(offset: int, count: int) -> list[int]:
                data = await self._pull(session, address, wire_queue, offset, count)
                if not data:
                    return []
                times: list[int] = RecordColumns(data, record_starts(data)).store_times_ms.tolist()
                return times

            return await first_offset_at(store_times, time_ms, approximate, earliest)

        return await self._request_broker(queue, search)

    async def _resolve_without_timestamps(
        self, spec: OffsetSpec, bounds: Bounds, group: str | None
    ) -> Offsets:
        """The offsets of a spec, ignoring its timestamps."""
        earliest, latest = bounds.earliest, bounds.latest
        offsets = dict(latest if spec.mode is OffsetMode.LATEST else earliest)
        if spec.mode is OffsetMode.GROUP and group is not None:
            offsets |= await self._group_offsets(group, list(latest))
        unknown = spec.offsets.keys() - latest.keys()
        if unknown:
            raise ConfigError(f"the offsets name {min(unknown)}, which this query does not read")
        missing = {queue for queue in latest if _timestamp_of(spec, queue) is None}
        missing -= spec.offsets.keys()
        if spec.offsets and missing:
            others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise ConfigError(
                f"the offsets do not name {min(missing)}{others}; name every queue, with "
                f"{EARLIEST} for its earliest offset and {LATEST} for its latest"
            )
        for queue, offset in spec.offsets.items():
            special = {EARLIEST: earliest[queue], LATEST: latest[queue]}
            offsets[queue] = special.get(offset, offset)
        return offsets

    async def _group_offsets(self, group: str, queues: list[MessageQueue]) -> Offsets:
        session = await self._get_session()
        wire_group = session.with_namespace(group)
        timeout_ms = self._connection.request_timeout_ms
        offsets = await self._gather(
            self._request_broker(
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
            queue: offset
            for queue, offset in zip(queues, offsets, strict=True)
            if offset is not None and offset >= 0
        }

    async def _commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> Offsets:
        timeout_ms = self._connection.request_timeout_ms

        async def commit_offset(queue: MessageQueue, offset: int) -> bool:
            try:
                session, address, _, wire_queue = await self._locate(queue)
                wire_group = session.with_namespace(group)
                await broker_api.update_consumer_offset(
                    session, address, wire_group, wire_queue, offset, timeout_ms=timeout_ms
                )
            except GoddardError as error:
                _logger.warning("offset of group %s in %s not committed: %s", group, queue, error)
                return not is_retriable(error)
            return True

        answered = await self._gather(
            commit_offset(queue, offset) for queue, offset in offsets.items()
        )
        return {
            queue: offsets[queue]
            for queue, has_answered in zip(offsets, answered, strict=True)
            if has_answered
        }


def _static_topic_message(topic: str) -> str:
    return (
        f"{topic} is a static topic: its logical queues move between brokers, which this source "
        "does not support; copy it to a normal topic and read that, or read the brokers' "
        "commit-log files with the format rocketmq-log"
    )


def _queues_and_topics(queues: Iterable[MessageQueue]) -> set[str | MessageQueue]:
    return {name for queue in queues for name in (queue, queue.topic)}


def _named_by_timestamp(spec: OffsetSpec) -> set[str | MessageQueue]:
    named: set[str | MessageQueue] = set()
    for topic, times in spec.timestamps_ms.items():
        named |= times.keys() if isinstance(times, dict) else {topic}
    return named


def _timestamp_of(spec: OffsetSpec, queue: MessageQueue) -> int | None:
    if spec.timestamp_ms is not None:
        return spec.timestamp_ms
    by_topic = spec.timestamps_ms.get(queue.topic)
    if isinstance(by_topic, dict):
        return by_topic.get(queue)
    return by_topic
