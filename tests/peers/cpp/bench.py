"""One measurement of the C++ client through PyPI's `rocketmq`; see bench/client.py.

Run by the interpreter of a virtual environment with the package. Arguments: name server, topic,
group, work (sync, async or consume), and the seconds of warm-up and of measurement or the number of
messages. The result is one line of JSON; the library's output goes to stderr.
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
_MAX_WAIT_SECONDS = 300.0


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
        latencies_ns = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter_ns()
            producer.send_sync(_message(topic))
            latencies_ns.append(time.perf_counter_ns() - began)
        return latencies_ns

    run()
    began, cpu = time.perf_counter(), time.process_time()
    latencies_ns = run()
    took, used = time.perf_counter() - began, time.process_time() - cpu
    latencies_ns.sort()
    return {
        "count": len(latencies_ns),
        "seconds": took,
        "cpu_seconds": used,
        "p50_us": latencies_ns[len(latencies_ns) // 2] / 1000,
        "p99_us": latencies_ns[int(len(latencies_ns) * 0.99)] / 1000,
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


def _consume(namesrv: str, topic: str, group: str, count: int) -> dict[str, float]:
    seen = 0
    began = cpu = 0.0
    done = threading.Event()
    lock = threading.Lock()

    def take(_: Any) -> None:
        nonlocal seen, began, cpu
        with lock:
            if not seen:
                began, cpu = time.perf_counter(), time.process_time()
            seen += 1
            if seen >= count:
                done.set()

    consumer = rocketmq.PushConsumer(group)
    consumer.set_namesrv_addr(namesrv)
    consumer.subscribe(topic, take)
    consumer.start()
    if not done.wait(_MAX_WAIT_SECONDS):
        raise SystemExit(f"only {seen} of {count} messages arrived")
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
