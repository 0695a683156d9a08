"""What a push consumer tells tools about itself (``consumerStatus`` of mqadmin, the dashboard)."""

import faulthandler
import tempfile
from collections.abc import Iterable, Mapping
from typing import Final

from goddard.client.consume.offsets import Offsets
from goddard.client.consume.process_queue import ProcessQueue
from goddard.client.consume.rates import ConsumeRates
from goddard.clock import Clock
from goddard.protocol.bodies import ConsumeType
from goddard.protocol.bodies_client import ConsumerRunningInfo, SubscriptionData

_MAX_STACKS_BYTES: Final = 1024 * 1024


def running_info(
    *,
    settings: Mapping[str, object],
    name_servers: Iterable[str],
    is_orderly: bool,
    thread_count: int,
    started_ms: int,
    subscriptions: Iterable[SubscriptionData],
    owned: Iterable[ProcessQueue],
    offsets: Offsets,
    rates: ConsumeRates,
    clock: Clock,
    with_stacks: bool,
) -> ConsumerRunningInfo:
    """``settings`` are the consumer's own, by RocketMQ's names; ``started_ms`` is a time of day."""
    now_ms = clock.monotonic_ms()
    epoch_ms = clock.now_ms() - now_ms
    wanted = list(subscriptions)
    properties = {name: _text(value) for name, value in settings.items()}
    properties |= {
        "PROP_NAMESERVER_ADDR": ";".join(name_servers) + ";",
        "PROP_CONSUME_TYPE": ConsumeType.PASSIVELY.value,
        "PROP_CONSUMEORDERLY": _text(is_orderly),
        "PROP_THREADPOOL_CORE_SIZE": str(thread_count),
        "PROP_CLIENT_VERSION": "V5_4_0",
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
    }
    info = ConsumerRunningInfo(properties=properties, subscription_set=wanted)
    for held in owned:
        queue = held.queue
        committed = offsets.cached(queue)
        info.mq_table[queue.to_body()] = held.info(-1 if committed is None else committed, epoch_ms)
    for one in wanted:
        info.status_table[one.topic] = rates.status(one.topic, now_ms)
    if with_stacks:
        info.jstack = thread_stacks()
    return info


def thread_stacks() -> str:
    """What every thread of this process is doing."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        return file.read(_MAX_STACKS_BYTES).decode("utf-8", "replace")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
