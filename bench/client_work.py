"""One timed piece of work with our client, in a process of its own; bench/client.py runs it.

Arguments as of tests/peers/java/ClientBench.java: name server, topic, group, work, and the seconds
of each of warm-up and measurement, or (fill, consume) the number of messages. One line of
JSON is the answer.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

import goddard
from goddard import aio
from goddard.transport.loop import new_event_loop

_BODY = b"x" * 100
_WINDOW = 1000
_GREATEST_WAIT_SECONDS = 300.0

Answer = dict[str, float]


def _answer(
    count: int, seconds: float, cpu_seconds: float, waits: list[int] | None = None
) -> Answer:
    answer = {"count": count, "seconds": seconds, "cpu_seconds": cpu_seconds}
    if waits:
        waits.sort()
        answer["p50_us"] = waits[len(waits) // 2] / 1000
        answer["p99_us"] = waits[int(len(waits) * 0.99)] / 1000
    return answer


def _sync(namesrv: str, topic: str, group: str, seconds: float) -> Answer:
    """One send after the other, from one thread."""
    with goddard.Producer(group, name_servers=namesrv, send_timeout_ms=10_000) as producer:

        def run() -> list[int]:
            waits: list[int] = []
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                began = time.perf_counter_ns()
                producer.send(goddard.Message(topic, _BODY, tags="TagA"))
                waits.append(time.perf_counter_ns() - began)
            return waits

        run()
        began, cpu = time.perf_counter(), time.process_time()
        waits = run()
        took, used = time.perf_counter() - began, time.process_time() - cpu
    return _answer(len(waits), took, used, waits)


def _threaded_async(namesrv: str, topic: str, group: str, seconds: float) -> Answer:
    """Pipelined from one thread, with futures."""
    with goddard.Producer(group, name_servers=namesrv, send_timeout_ms=10_000) as producer:

        def run() -> int:
            count = 0
            end = time.perf_counter() + seconds
            # Those of the last two rounds are in flight.
            earlier: list[Future[goddard.SendResult]] = []
            while time.perf_counter() < end:
                sent = [
                    producer.send_async(goddard.Message(topic, _BODY, tags="TagA"))
                    for _ in range(_WINDOW // 2)
                ]
                count += len(sent)
                for future in earlier:
                    future.result()
                earlier = sent
            for future in earlier:
                future.result()
            return count

        run()
        began, cpu = time.perf_counter(), time.process_time()
        count = run()
        took, used = time.perf_counter() - began, time.process_time() - cpu
    return _answer(count, took, used)


async def _pipelined(
    namesrv: str, topic: str, group: str, seconds: float, *, accumulate: bool = False
) -> Answer:
    """Pipelined on the loop, with at most so many in flight."""
    window = _WINDOW * 10 if accumulate else _WINDOW
    async with aio.Producer(
        group,
        name_servers=namesrv,
        send_timeout_ms=10_000,
        accumulate=goddard.AccumulatorOptions() if accumulate else None,
    ) as producer:
        loop = asyncio.get_running_loop()

        async def run() -> int:
            count = in_flight = 0
            room = asyncio.Event()
            failures: list[BaseException] = []

            def done(future: asyncio.Future[goddard.SendResult]) -> None:
                nonlocal in_flight
                in_flight -= 1
                if (error := future.exception()) is not None:
                    failures.append(error)
                room.set()

            end = loop.time() + seconds
            while loop.time() < end:
                while in_flight < window:
                    in_flight += 1
                    count += 1
                    future = producer.send_soon(goddard.Message(topic, _BODY, tags="TagA"))
                    future.add_done_callback(done)
                room.clear()
                await room.wait()
            while in_flight:
                room.clear()
                await room.wait()
            if failures:
                raise failures[0]
            return count

        await run()
        began, cpu = time.perf_counter(), time.process_time()
        count = await run()
        took, used = time.perf_counter() - began, time.process_time() - cpu
    return _answer(count, took, used)


async def _fill(namesrv: str, topic: str, group: str, wanted: int) -> Answer:
    """Messages for others to consume."""
    began, cpu = time.perf_counter(), time.process_time()
    async with aio.Producer(
        group,
        name_servers=namesrv,
        send_timeout_ms=10_000,
        accumulate=goddard.AccumulatorOptions(),
    ) as producer:
        for start in range(0, wanted, _WINDOW):
            await asyncio.gather(
                *(
                    producer.send_soon(goddard.Message(topic, _BODY, tags="TagA"))
                    for _ in range(start, min(start + _WINDOW, wanted))
                )
            )
    return _answer(wanted, time.perf_counter() - began, time.process_time() - cpu)


def _consume(namesrv: str, topic: str, group: str, wanted: int) -> Answer:
    """From the first message's arrival to the last one's."""
    seen = 0
    began = cpu = 0.0
    done = threading.Event()
    guard = threading.Lock()

    def listener(messages: list[goddard.ReceivedMessage], context: object) -> None:
        nonlocal seen, began, cpu
        with guard:
            if not seen:
                began, cpu = time.perf_counter(), time.process_time()
            seen += len(messages)
            if seen >= wanted:
                done.set()

    consumer = goddard.PushConsumer(
        group,
        name_servers=namesrv,
        listener=listener,
        consume_from=goddard.ConsumeFrom.FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    with consumer:
        if not done.wait(_GREATEST_WAIT_SECONDS):
            raise TimeoutError(f"{seen} of {wanted} messages came")
        took, used = time.perf_counter() - began, time.process_time() - cpu
    return _answer(seen, took, used)


def _on_loop(work: Callable[[], Awaitable[Answer]]) -> Answer:
    async def run() -> Answer:
        return await work()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run())


def main() -> None:
    namesrv, topic, group, work, amount = sys.argv[1:]
    common = (namesrv, topic, group)
    works: dict[str, Callable[[], Answer]] = {
        "sync": lambda: _sync(*common, float(amount)),
        "async": lambda: _on_loop(lambda: _pipelined(*common, float(amount))),
        "threads": lambda: _threaded_async(*common, float(amount)),
        "accumulate": lambda: _on_loop(lambda: _pipelined(*common, float(amount), accumulate=True)),
        "fill": lambda: _on_loop(lambda: _fill(*common, int(amount))),
        "consume": lambda: _consume(*common, int(amount)),
    }
    sys.stdout.write(json.dumps(works[work]()) + "\n")


if __name__ == "__main__":
    main()
