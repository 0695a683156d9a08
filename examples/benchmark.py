"""Measure a cluster from your own program; `goddard bench` does it with more options.

NAMESRV_ADDR=127.0.0.1:9876 python examples/benchmark.py
"""

import statistics
import time
from concurrent.futures import wait

from goddard import Message, Producer

ONE_AT_A_TIME, TOGETHER = 500, 5_000
BODY = b"x" * 100

with Producer("benchmark_producer") as producer:
    producer.send(Message("TopicBenchmark", BODY))

    latencies_ms = []
    for _ in range(ONE_AT_A_TIME):
        began = time.perf_counter()
        producer.send(Message("TopicBenchmark", BODY))
        latencies_ms.append((time.perf_counter() - began) * 1_000)
    percentiles = statistics.quantiles(latencies_ms, n=100)
    print(f"one at a time: p50 {percentiles[49]:.2f} ms, p99 {percentiles[98]:.2f} ms")

    began = time.perf_counter()
    futures = [
        producer.send_async(Message("TopicBenchmark", BODY), timeout_ms=60_000)
        for _ in range(TOGETHER)
    ]
    wait(futures)
    seconds = time.perf_counter() - began
    failed = sum(future.exception() is not None for future in futures)
    print(f"together: {TOGETHER / seconds:,.0f} messages/s, {failed} failed")
