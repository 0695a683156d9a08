"""Sends that nobody waits for one by one: many under way at a time, each with a future.

A message takes off at once if its route, its connection and a permit are there: then it costs an
object and a future, and its answer is handled as it comes in. Otherwise a task waits for what is
missing. Messages take off in the order of coming; only those that are tried again may change it.
Belongs to the loop of its producer.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from goddard.client.errors import (
    BrokerError,
    BrokerNotFoundError,
    ClientError,
    NotRunningError,
    SendFailedError,
    TooManyRequestsError,
)
from goddard.client.message import Message
from goddard.client.produce.backpressure import SendPermits
from goddard.client.produce.encoding import Outgoing, read_result
from goddard.client.produce.hooks import SendContext, SendMode
from goddard.client.produce.retry import code_of
from goddard.client.produce.selectors import Selector
from goddard.client.produce.sender import COMPRESS_BY_THREAD_BYTES, Courier
from goddard.client.values import MessageQueue, SendResult
from goddard.errors import (
    OverloadedError,
    ProtocolError,
    RemotingError,
    RequestTimeoutError,
)
from goddard.protocol.frame import RemotingCommand

_T = TypeVar("_T")


class Flight:
    """One message on its way."""

    __slots__ = (
        "_flights",
        "address",
        "context",
        "future",
        "has_permit",
        "is_fixed",
        "key",
        "message",
        "out",
        "queue",
        "selector",
        "started_ms",
        "timeout_ms",
        "topic",
        "tries",
    )

    def __init__(
        self,
        flights: "Flights",
        message: Message,
        topic: str,
        timeout_ms: int,
        queue: MessageQueue | None,
        selector: Selector | None,
        key: Any,
    ) -> None:
        self._flights = flights
        self.message = message
        self.topic = topic
        self.timeout_ms = timeout_ms
        self.queue = queue
        self.selector = selector
        self.key = key
        self.is_fixed = queue is not None or selector is not None or key is not None
        self.future: asyncio.Future[SendResult] = flights.loop.create_future()
        self.started_ms = flights.clock.monotonic_ms()
        self.tries = 0
        self.has_permit = False
        self.out: Outgoing | None = None
        self.address = ""
        self.context: SendContext | None = None

    @property
    def left_ms(self) -> int:
        return self.started_ms + self.timeout_ms - self._flights.clock.monotonic_ms()

    def encode(self, opaque: int) -> bytes:
        return self._flights.encode(self, opaque)

    def done(self, outcome: RemotingCommand | RemotingError) -> None:
        self._flights.answered(self, outcome)


class Flights:
    """The messages of one producer that are under way."""

    def __init__(
        self,
        courier: Courier,
        *,
        retries: int,
        permits: SendPermits | None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._courier = courier
        self._session = courier.session
        self.clock = courier.session.clock
        self._tasks: set[asyncio.Task[SendResult]] = set()
        self._retries = retries
        self._permits = permits
        self._under_way = 0
        # How many wait to take off; later ones may not overtake them.
        self._grounded = 0
        # The last of those in line for a topic, then for a queue: done when it is through.
        self._last_in_line: dict[str | MessageQueue, asyncio.Future[None]] = {}
        self._all_landed: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return self._under_way

    def launch(
        self,
        message: Message,
        topic: str,
        timeout_ms: int,
        queue: MessageQueue | None,
        selector: Selector | None,
        key: Any,
    ) -> asyncio.Future[SendResult]:
        """Send a valid message; ``topic`` is the brokers' name of its topic."""
        if queue is not None:
            queue = self._courier.fixed(queue, message.topic, topic)
        flight = Flight(self, message, topic, timeout_ms, queue, selector, key)
        self._under_way += 1
        try:
            is_off = not self._grounded and self._take_off(flight)
        except BaseException:
            self._land(flight)
            raise
        if not is_off:
            self._grounded += 1
            self._spawn(flight, self._fly(flight))
        return flight.future

    def begin(self) -> None:
        """A send is made elsewhere: ``drain`` waits for it too, until its ``end``."""
        self._under_way += 1

    def end(self) -> None:
        self._under_way -= 1
        if not self._under_way and self._all_landed is not None:
            if not self._all_landed.done():
                self._all_landed.set_result(None)
            self._all_landed = None

    async def drain(self) -> None:
        """Until nothing is under way; each send ends in its own time."""
        try:
            while self._under_way:
                self._all_landed = self.loop.create_future()
                await self._all_landed
        finally:
            for task in self._tasks:
                task.cancel()

    # The fast way

    def _take_off(self, flight: Flight) -> bool:
        """Send now if nothing has to be waited for."""
        message = flight.message
        courier = self._courier
        if self._permits is not None:
            if not self._permits.try_acquire(len(message.body)):
                return False
            flight.has_permit = True
        size = len(message.body)
        if size >= COMPRESS_BY_THREAD_BYTES and size >= courier.settings.compress_from_bytes:
            return False
        route = self._session.known_publish_route(flight.topic)
        if route is None:
            return False
        flight.out = courier.prepare(message, flight.topic)
        queue = flight.queue
        if queue is None:
            if flight.is_fixed:
                queue = courier.select(route, message, flight.selector, flight.key)
            else:
                queue = courier.choose(route)
            flight.queue = queue
        address = self._session.broker_address(queue.broker_name)
        if address is None:
            return False
        connection = self._session.connection(address)
        if connection is None:
            return False
        flight.address = address
        if courier.has_hooks:
            flight.context = courier.before(flight.out, (message,), queue, address, SendMode.ASYNC)
        flight.tries = 1
        try:
            connection.submit(flight.encode, flight.out.code, flight.timeout_ms, flight.done)
        except RemotingError as error:
            self._failed_once(flight, error)
        return True

    def encode(self, flight: Flight, opaque: int) -> bytes:
        out, queue = flight.out, flight.queue
        assert out is not None
        assert queue is not None
        return self._courier.frame(out, queue, opaque)

    def answered(self, flight: Flight, outcome: RemotingCommand | RemotingError) -> None:
        """The first try has its answer, or will have none."""
        out, queue = flight.out, flight.queue
        assert out is not None
        assert queue is not None
        if isinstance(outcome, RemotingError):
            self._failed_once(flight, outcome)
            return
        courier = self._courier
        try:
            result = read_result(out, queue, outcome, flight.address)
        except BrokerError as error:
            courier.failed(queue, error, flight.started_ms)
            courier.after(flight.context, error=error)
            self._fail(flight, error)
            return
        except ProtocolError as error:
            self._failed_once(flight, error)
            return
        courier.succeeded(queue, flight.started_ms)
        if flight.context is not None:
            courier.after(flight.context, result=result)
        self._succeed(flight, result)

    def _failed_once(self, flight: Flight, error: RemotingError | ProtocolError) -> None:
        if flight.queue is not None:
            self._courier.failed(flight.queue, error, flight.started_ms)
        self._courier.after(flight.context, error=error)
        if self._gives_up(flight, error):
            self._fail(flight, self._failure(flight, error))
        else:
            self._spawn(flight, self._fly_again(flight))

    # The way that waits

    def _spawn(self, flight: Flight, way: Coroutine[Any, Any, SendResult]) -> None:
        task = self.loop.create_task(way, name=f"send to {flight.topic}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._flown, flight))

    def _flown(self, flight: Flight, task: asyncio.Task[SendResult]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._fail(flight, NotRunningError("the producer was stopped before the answer came"))
        elif (error := task.exception()) is not None:
            self._fail(flight, error)
        else:
            self._succeed(flight, task.result())

    async def _fly(self, flight: Flight) -> SendResult:
        try:
            queue = await self._in_line(flight.topic, self._prepare(flight))
            # What fails here is found again by the first try, and then tried elsewhere.
            with contextlib.suppress(RemotingError, BrokerNotFoundError):
                await self._in_line(queue, self._connect(flight, queue))
        finally:
            self._grounded -= 1
        return await self._carry(flight)

    async def _in_line(self, place: str | MessageQueue, work: Coroutine[Any, Any, _T]) -> _T:
        """Do something beside others, but be through with it in the order of coming: a long message
        takes longer to prepare than a short one that follows it."""
        before = self._last_in_line.get(place)
        through = self._last_in_line[place] = self.loop.create_future()
        try:
            result = await work
            if before is not None and not before.done():
                await asyncio.wait((before,))
            return result
        finally:
            through.set_result(None)
            if self._last_in_line[place] is through:
                del self._last_in_line[place]

    async def _prepare(self, flight: Flight) -> MessageQueue:
        courier = self._courier
        if not flight.has_permit and self._permits is not None:
            await self._permits.acquire(len(flight.message.body), max(1, flight.left_ms))
            flight.has_permit = True
        if flight.out is None:
            flight.out = await courier.prepare_anyhow(flight.message, flight.topic)
        if flight.queue is None:
            route = await courier.route(flight.topic, flight.left_ms)
            if flight.is_fixed:
                flight.queue = courier.select(route, flight.message, flight.selector, flight.key)
            else:
                flight.queue = courier.choose(route)
        return flight.queue

    async def _connect(self, flight: Flight, queue: MessageQueue) -> None:
        address = await self._courier.locate(queue, flight.topic, flight.left_ms)
        await self._session.connect(address, max(1, flight.left_ms))

    async def _fly_again(self, flight: Flight) -> SendResult:
        await self._turn(flight)
        return await self._carry(flight)

    async def _carry(self, flight: Flight) -> SendResult:
        """Try until it is done, or all tries and the time are used up."""
        out = flight.out
        assert out is not None
        while True:
            queue = flight.queue
            assert queue is not None
            flight.tries += 1
            try:
                return await self._courier.carry(
                    out, (flight.message,), queue, max(1, flight.left_ms), SendMode.ASYNC
                )
            except (RemotingError, ProtocolError, BrokerNotFoundError) as error:
                if self._gives_up(flight, error):
                    failure = self._failure(flight, error)
                    raise failure from failure.__cause__
            await self._turn(flight)

    async def _turn(self, flight: Flight) -> None:
        """To another broker, if the user left that open and there is one."""
        if not flight.is_fixed and flight.queue is not None:
            route = await self._courier.route(flight.topic, flight.left_ms)
            flight.queue = self._courier.choose(route, flight.queue.broker_name)

    # The end

    def _gives_up(self, flight: Flight, error: Exception) -> bool:
        return (
            flight.tries > self._retries
            or flight.left_ms <= 0
            or flight.future.done()
            or isinstance(error, OverloadedError)
        )

    def _failure(self, flight: Flight, error: Exception) -> ClientError:
        failure: ClientError
        address = getattr(error, "address", "")
        if isinstance(error, OverloadedError) and flight.tries == 1:
            failure = TooManyRequestsError(str(error), address=address)
        elif isinstance(error, BrokerNotFoundError):
            failure = error
        else:
            cost_ms = self.clock.monotonic_ms() - flight.started_ms
            if isinstance(error, RequestTimeoutError):
                text = f"wait response timeout, cost={cost_ms}"
            elif isinstance(error, RemotingError):
                text = "send request failed"
            else:
                text = "unknown reason"
            failure = SendFailedError(
                f"{text}, Topic: {flight.message.topic}",
                code=code_of(error),
                tries=flight.tries,
                address=address,
            )
        if failure is not error:
            failure.__cause__ = error
        return failure

    def _succeed(self, flight: Flight, result: SendResult) -> None:
        if not flight.future.done():
            flight.future.set_result(result)
        self._land(flight)

    def _fail(self, flight: Flight, error: BaseException) -> None:
        if not flight.future.done():
            flight.future.set_exception(error)
        self._land(flight)

    def _land(self, flight: Flight) -> None:
        if flight.has_permit and self._permits is not None:
            flight.has_permit = False
            self._permits.release(len(flight.message.body))
        self.end()
