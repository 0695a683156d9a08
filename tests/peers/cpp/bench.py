"""One timed piece of work with the C++ client through PyPI's `rocketmq`; see bench/client.py.

Run by the interpreter of a virtual environment that has the package. Arguments: name server, topic,
group, work (sync, async or consume), and the seconds of each of warm-up and measurement or the
number of messages. One line of JSON is the answer; what the library prints goes to stderr.
"""

import importlib
import json
import os
import sys
import threading
import time
from typing import Any

rocketmq = importlib.import_module("rocketmq.client")

_BODY = b"x" * 100
_WINDOW = 1000
_GREATEST_WAIT_SECONDS = 300.0


def _producer(namesrv: str, group: str) -> Any:
    producer = rocketmq.Producer(group, timeout=10_000)
    producer.set_namesrv_addr(namesrv)
    producer.start()
    return producer


def _message(topic: str) -> Any:
    message = rocketmq.Message(topic)
    message.set_tags("TagA")
    message.set_body(_BODY)
    return message


def _sync(namesrv: str, topic: str, group: str, seconds: float) -> dict[str, float]:
    producer = _producer(namesrv, group)

    def run() -> list[int]:
        waits = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter_ns()
            producer.send_sync(_message(topic))
            waits.append(time.perf_counter_ns() - began)
        return waits

    run()
    began, cpu = time.perf_counter(), time.process_time()
    waits = run()
    took, used = time.perf_counter() - began, time.process_time() - cpu
    waits.sort()
    return {
        "count": len(waits),
        "seconds": took,
        "cpu_seconds": used,
        "p50_us": waits[len(waits) // 2] / 1000,
        "p99_us": waits[int(len(waits) * 0.99)] / 1000,
    }


def _async(namesrv: str, topic: str, group: str, seconds: float) -> dict[str, float]:
    producer = _producer(namesrv, group)
    failures = []

    def run() -> int:
        window = threading.Semaphore(_WINDOW)

        def done(_: Any) -> None:
            window.release()

        def failed(problem: Any) -> None:
            failures.append(problem)
            window.release()

        count = 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            window.acquire()
            producer.send_async(_message(topic), done, failed)
            count += 1
        for _ in range(_WINDOW):
            window.acquire()
        return count

    run()
    began, cpu = time.perf_counter(), time.process_time()
    count = run()
    took, used = time.perf_counter() - began, time.process_time() - cpu
    if failures:
        raise SystemExit(f"{len(failures)} sends failed: {failures[0]}")
    return {"count": count, "seconds": took, "cpu_seconds": used}


def _consume(namesrv: str, topic: str, group: str, wanted: int) -> dict[str, float]:
    seen = 0
    began = cpu = 0.0
    done = threading.Event()
    guard = threading.Lock()

    def take(_: Any) -> None:
        nonlocal seen, began, cpu
        with guard:
            if not seen:
                began, cpu = time.perf_counter(), time.process_time()
            seen += 1
            if seen >= wanted:
                done.set()

    consumer = rocketmq.PushConsumer(group)
    consumer.set_namesrv_addr(namesrv)
    consumer.subscribe(topic, take)
    consumer.start()
    if not done.wait(_GREATEST_WAIT_SECONDS):
        raise SystemExit(f"{seen} of {wanted} messages came")
    return {
        "count": seen,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
    }


def _work(words: list[str]) -> dict[str, float]:
    namesrv, topic, group, work, amount = words
    if work == "consume":
        return _consume(namesrv, topic, group, int(amount))
    timed = {"sync": _sync, "async": _async}[work]
    return timed(namesrv, topic, group, float(amount))


if __name__ == "__main__":
    own_stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    own_stdout.write(json.dumps(_work(sys.argv[1:])) + "\n")
    own_stdout.flush()
    # The library's threads would keep the process alive.
    os._exit(0)
