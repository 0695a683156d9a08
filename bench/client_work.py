"""One measurement of Goddard's client, in its own process; started by bench/client.py.

The arguments are those of tests/peers/java/ClientBench.java: name server, topic, group, work, and
the seconds of warm-up and of measurement, or the number of messages (fill, consume). The result is
one line of JSON on standard output.
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
_MAX_WAIT_SECONDS = 300.0

Result = dict[str, float]


def _result(
    count: int, seconds: float, cpu_seconds: float, latencies_ns: list[int] | None = None
) -> Result:
    result = {"count": count, "seconds": seconds, "cpu_seconds": cpu_seconds}
    if latencies_ns:
        latencies_ns.sort()
        result["p50_us"] = latencies_ns[len(latencies_ns) // 2] / 1000
        result["p99_us"] = latencies_ns[int(len(latencies_ns) * 0.99)] / 1000
    return result


def _sync(namesrv: str, topic: str, group: str, seconds: float) -> Result:
    """Sequential sends from one thread."""
    with goddard.Producer(group, name_servers=namesrv, send_timeout_ms=10_000) as producer:

        def run() -> list[int]:
            latencies_ns: list[int] = []
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                began = time.perf_counter_ns()
                producer.send(goddard.Message(topic, _BODY, tags="TagA"))
                latencies_ns.append(time.perf_counter_ns() - began)
            return latencies_ns

        run()
        began, cpu = time.perf_counter(), time.process_time()
        latencies_ns = run()
        took, used = time.perf_counter() - began, time.process_time() - cpu
    return _result(len(latencies_ns), took, used, latencies_ns)


def _threaded_async(namesrv: str, topic: str, group: str, seconds: float) -> Result:
    """Pipelined sends from one thread, with futures."""
    with goddard.Producer(group, name_servers=namesrv, send_timeout_ms=10_000) as producer:

        def run() -> int:
            count = 0
            end = time.perf_counter() + seconds
            # The sends of the last two rounds are in flight.
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
    return _result(count, took, used)


async def _pipelined(
    namesrv: str, topic: str, group: str, seconds: float, *, accumulate: bool = False
) -> Result:
    """Pipelined sends on the event loop, with a bounded number in flight."""
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
            may_send = asyncio.Event()
            failures: list[BaseException] = []

            def done(future: asyncio.Future[goddard.SendResult]) -> None:
                nonlocal in_flight
                in_flight -= 1
                if (error := future.exception()) is not None:
                    failures.append(error)
                may_send.set()

            end = loop.time() + seconds
            while loop.time() < end:
                while in_flight < window:
                    in_flight += 1
                    count += 1
                    future = producer.send_soon(goddard.Message(topic, _BODY, tags="TagA"))
                    future.add_done_callback(done)
                may_send.clear()
                await may_send.wait()
            while in_flight:
                may_send.clear()
                await may_send.wait()
            if failures:
                raise failures[0]
            return count

        await run()
        began, cpu = time.perf_counter(), time.process_time()
        count = await run()
        took, used = time.perf_counter() - began, time.process_time() - cpu
    return _result(count, took, used)


async def _fill(namesrv: str, topic: str, group: str, count: int) -> Result:
    """Send messages for the consume measurement."""
    began, cpu = time.perf_counter(), time.process_time()
    async with aio.Producer(
        group,
        name_servers=namesrv,
        send_timeout_ms=10_000,
        accumulate=goddard.AccumulatorOptions(),
    ) as producer:
        for start in range(0, count, _WINDOW):
            await asyncio.gather(
                *(
                    producer.send_soon(goddard.Message(topic, _BODY, tags="TagA"))
                    for _ in range(start, min(start + _WINDOW, count))
                )
            )
    return _result(count, time.perf_counter() - began, time.process_time() - cpu)


def _consume(namesrv: str, topic: str, group: str, count: int) -> Result:
    """Time from the arrival of the first message to that of the last."""
    seen = 0
    began = cpu = 0.0
    done = threading.Event()
    lock = threading.Lock()

    def listener(messages: list[goddard.ReceivedMessage], context: object) -> None:
        nonlocal seen, began, cpu
        with lock:
            if not seen:
                began, cpu = time.perf_counter(), time.process_time()
            seen += len(messages)
            if seen >= count:
                done.set()

    consumer = goddard.PushConsumer(
        group,
        name_servers=namesrv,
        listener=listener,
        consume_from=goddard.ConsumeFrom.FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    with consumer:
        if not done.wait(_MAX_WAIT_SECONDS):
            raise TimeoutError(f"only {seen} of {count} messages arrived")
        took, used = time.perf_counter() - began, time.process_time() - cpu
    return _result(seen, took, used)


def _on_loop(work: Callable[[], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        return await work()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run())


def main() -> None:
    namesrv, topic, group, work, amount = sys.argv[1:]
    common = (namesrv, topic, group)
    works: dict[str, Callable[[], Result]] = {
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
