"""Verbs about brokers: their properties, figures and maintenance."""

from collections.abc import Iterable
from typing import Final

from goddard.cli.mqadmin.call import Call, in_parallel
from goddard.cli.mqadmin.java_text import front, seconds_text
from goddard.client.admin.values import BrokerPlace

_STATS: Final = "%-64s  %-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s"


async def update_broker_config(call: Call) -> None:
    options = call.options
    properties = {options.text("k"): options.text("v")}

    async def change(address: str) -> None:
        await call.admin.update_broker_config(properties, broker=address)

    addresses = await (call.all_brokers() if "a" in options else call.masters())
    await call.on_each(addresses, change, lambda one: f"update broker config success, {one}")


async def get_broker_config(call: Call) -> None:
    titles = await titled_brokers(call)
    configs = await in_parallel(titles, call.admin.broker_config)
    for title, config in zip(titles.values(), configs, strict=True):
        call.line(title)
        for name, value in sorted(config.items()):
            call.line(f"{name:<50}=  {value}")
        call.line()


async def titled_brokers(call: Call) -> dict[str, str]:
    """The brokers of ``-b`` or ``-c``: headings by address, slaves below their masters."""
    if "b" in call.options:
        address = await call.broker()
        return {address: f"============{address}============"}
    places = await call.admin.brokers(cluster=call.options.text("c"))
    return {place.address: _heading(place, places) for place in places}


def _heading(place: BrokerPlace, places: Iterable[BrokerPlace]) -> str:
    if place.is_master:
        return f"============Master: {place.address}============"
    masters = [one.address for one in places if one.is_master and one.name == place.name]
    master = masters[0] if masters else "NO_MASTER"
    return f"============My Master: {master}=====Slave: {place.address}============"


async def broker_status(call: Call) -> None:
    addresses = await call.all_brokers()
    figures = await in_parallel(addresses, call.admin.broker_runtime)
    for address, known in zip(addresses, figures, strict=True):
        for name, value in sorted(known.items()):
            prefix = f"{address:<24} " if "c" in call.options else ""
            call.line(f"{prefix}{name:<32}: {value}")


async def broker_consume_stats(call: Call) -> None:
    options = call.options
    least = options.number("l")
    answer = await call.admin.broker_progress(
        await call.broker(), order=options.boolean("o"), timeout_ms=options.number("t", 50_000)
    )
    columns = ("#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset")
    call.row(_STATS, *columns, "#Diff", "#LastTime")
    for group, parts in answer.groups.items():
        for part in parts:
            for queue, at in part.queues.items():
                lag = at.broker_offset - at.consumer_offset
                # As the official tool: no row for a queue of which nothing was consumed.
                if lag < least or at.last_timestamp <= 0:
                    continue
                name = front(queue.broker_name, 32)
                offsets = (at.broker_offset, at.consumer_offset, lag)
                topic, last = front(queue.topic, 64), seconds_text(at.last_timestamp)
                call.row(_STATS, topic, group, name, queue.queue_id, *offsets, last)
    call.line()
    call.line(f"Diff Total: {answer.lag}")


async def clean_expired_consume_queues(call: Call) -> None:
    await call.admin.clean_expired_consume_queues(**call.any_place())
    call.text("success")


async def delete_expired_commit_logs(call: Call) -> None:
    await call.admin.delete_expired_commit_logs(**call.any_place())
    call.text("success")


async def clean_unused_topics(call: Call) -> None:
    await call.admin.clean_unused_topics(**call.any_place())
    call.text("success")
