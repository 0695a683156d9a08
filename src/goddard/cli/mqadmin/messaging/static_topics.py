"""Verbs about static topics (5.x): fixed numbers of queues that can move between brokers."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from goddard.cli.mqadmin.call import Call
from goddard.cli.mqadmin.messaging import static_plan
from goddard.cli.mqadmin.messaging.topics import read_file
from goddard.cli.mqadmin.private_files import write_private
from goddard.cli.terminal.mistakes import FailedError
from goddard.client.errors import BrokerError
from goddard.protocol.bodies import TopicConfig, encode_body
from goddard.protocol.bodies_admin import StaticTopicPlan, TopicConfigAndMapping
from goddard.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin


async def update_static_topic(call: Call) -> None:
    options, topic = call.options, call.options.text("t")
    if "mf" in options:
        plan = read_file(options, "mf", StaticTopicPlan)
        static_plan.current_plan(topic, plan.broker_config_map, plan.epoch)
        await _write_all(call, plan)
        return
    brokers = await _chosen_brokers(call)
    configs = await _configs(call.admin, topic)
    now_ms = call.admin.clock.now_ms()
    _save(call, "old", static_plan.current_plan(topic, dict(configs), now_ms), suffix=".before")
    count = options.number("qn", least=1)
    plan = static_plan.with_queues(topic, configs, count, brokers, now_ms)
    _save(call, "new", plan, suffix=".after")
    await _write_all(call, plan)


async def remap_static_topic(call: Call) -> None:
    options, topic = call.options, call.options.text("t")
    if "mf" in options:
        plan = read_file(options, "mf", StaticTopicPlan)
        static_plan.current_plan(topic, plan.broker_config_map, plan.epoch)
        await _move(call, plan)
        return
    brokers = await _chosen_brokers(call)
    configs = await _configs(call.admin, topic)
    if not configs:
        raise FailedError(f"there is no topic {topic}")
    now_ms = call.admin.clock.now_ms()
    _save(call, "old", static_plan.current_plan(topic, dict(configs), now_ms), suffix=".before")
    plan = static_plan.moved(topic, configs, brokers, now_ms)
    # Java calls both files old.
    _save(call, "old", plan, suffix=".after")
    await _move(call, plan)


async def _chosen_brokers(call: Call) -> set[str]:
    """The names of the brokers of ``-b``, or of the clusters of ``-c``."""
    masters = [place for place in await call.admin.brokers() if place.is_master]
    if "b" in call.options:
        names = set(call.options.words("b"))
    else:
        names = {one.name for one in masters if one.cluster in call.options.words("c")}
    unknown = sorted(names - {one.name for one in masters})
    if unknown or not names:
        known = ", ".join(sorted(one.name for one in masters))
        raise FailedError(f"there is no such broker {', '.join(unknown)}; brokers: {known}")
    return names


async def _configs(admin: "Admin", topic: str) -> static_plan.Configs:
    """The settings of a topic on all brokers that have it."""
    found: dict[str, TopicConfigAndMapping] = {}
    for place in await admin.brokers():
        if not place.is_master:
            continue
        try:
            found[place.name] = await admin.topic_config(topic, broker=place.address)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
    return found


def _save(call: Call, kind: str, plan: StaticTopicPlan, *, suffix: str) -> None:
    """Write a plan to a file, so that it can be applied again with ``-mf``."""
    path = Path(tempfile.gettempdir()) / f"{plan.topic}-{plan.epoch}{suffix}"
    write_private(path, encode_body(plan))
    call.line(f"The {kind} mapping data is written to file {path}")


async def _write_all(call: Call, plan: StaticTopicPlan) -> None:
    await _complete(call.admin, plan)
    await _write(call, plan, plan.broker_config_map)


async def _move(call: Call, plan: StaticTopicPlan) -> None:
    """First the new leaders, without offsets; then the old ones stop; then the offsets."""
    await _complete(call.admin, plan)
    gaining, losing = plan.broker_to_map_in, plan.broker_to_map_out
    await _write(call, plan, gaining)
    await _write(call, plan, losing)
    for broker in losing:
        stats = await call.admin.topic_stats(plan.topic, broker=broker)
        ends = {queue.queue_id: at.max_offset for queue, at in stats.queues.items()}
        static_plan.set_start_offsets(plan, broker, ends)
    await _write(call, plan, gaining)
    await _write(call, plan, plan.broker_config_map.keys() - {*gaining, *losing})


async def _complete(admin: "Admin", plan: StaticTopicPlan) -> None:
    places = [place for place in await admin.brokers() if place.is_master]
    clusters = {one.cluster for one in places if one.name in plan.broker_config_map}
    static_plan.complete(plan, (one.name for one in places if one.cluster in clusters))


async def _write(call: Call, plan: StaticTopicPlan, brokers: Iterable[str]) -> None:
    force = call.options.boolean("fr")
    for broker in sorted(brokers):
        known = plan.broker_config_map[broker]
        config = TopicConfig(
            topic_name=plan.topic,
            read_queue_nums=known.read_queue_nums,
            write_queue_nums=known.write_queue_nums,
            perm=known.perm,
            order=known.order,
            topic_sys_flag=known.topic_sys_flag,
            topic_filter_type=known.topic_filter_type,
        )
        assert known.mapping_detail is not None
        await call.admin.create_static_topic(broker, config, known.mapping_detail, force=force)
