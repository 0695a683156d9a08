"""Which broker holds which queue of a static topic (5.x): plans of new and of moved queues. Pure.

A static topic has a fixed number of logical queues. Each is a chain of physical queues; the last
one, on the leader, takes new messages. RocketMQ's class is TopicQueueMappingUtils.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from goddard.cli.terminal.mistakes import FailedError, WrongUsageError
from goddard.protocol.bodies import QueueMappingItem, TopicQueueMappingDetail
from goddard.protocol.bodies_admin import StaticTopicPlan, TopicConfigAndMapping

_CREATE: Final = "CREATE_OR_UPDATE"
_MOVE: Final = "REMAPPING"
# An epoch is a time in milliseconds; each change is at least a second later than the one before.
_EPOCH_STEP: Final = 1_000
# A new leader begins this many offsets on, so that the old one may still accept some messages.
_OFFSET_BLOCK: Final = 10_000

Configs = dict[str, TopicConfigAndMapping]
"""The settings of a topic, by the name of the broker."""


def current_plan(topic: str, configs: Configs, now_ms: int) -> StaticTopicPlan:
    """The plan of what is there; FailedError if the brokers disagree or it is not static."""
    epochs, totals = set(), set()
    for broker, config in configs.items():
        detail = config.mapping_detail
        if detail is None:
            raise FailedError(f"topic {topic} on broker {broker} is not a static topic")
        if detail.bname != broker or detail.topic != topic or detail.dirty:
            raise FailedError(f"the mapping of topic {topic} on broker {broker} is damaged")
        epochs.add(detail.epoch)
        totals.add(detail.total_queues)
    if len(epochs) > 1 or len(totals) > 1:
        raise FailedError(
            f"the brokers have different mappings of topic {topic}; apply the last plan again "
            "with -mf"
        )
    leaders(configs)
    return _plan(topic, _CREATE, epochs.pop() if epochs else now_ms, configs)


def leaders(configs: Configs) -> dict[int, list[QueueMappingItem]]:
    """The chain of each logical queue, as its leader has it; FailedError if it is inconsistent."""
    chains: dict[int, list[QueueMappingItem]] = {}
    used: dict[tuple[str | None, int], int] = {}
    for broker, config in configs.items():
        for queue, items in sorted(_detail(config).hosted_queues.items()):
            if not items or items[-1].bname != broker:
                continue
            if queue in chains:
                raise FailedError(
                    f"queue {queue} has two leaders: {chains[queue][-1].bname}, {broker}"
                )
            chains[queue] = items
            for item in items:
                place = (item.bname, item.queue_id)
                if used.setdefault(place, queue) != queue:
                    raise FailedError(f"queues {used[place]} and {queue} share one physical queue")
                holder = configs.get(item.bname or "")
                if holder is None or item.queue_id >= holder.write_queue_nums:
                    raise FailedError(f"queue {queue} is on {item.bname}, which does not have it")
    total = max((_detail(config).total_queues for config in configs.values()), default=0)
    if configs and sorted(chains) != list(range(total)):
        raise FailedError(f"{total} queues are needed, and {len(chains)} have a leader")
    return chains


def with_queues(
    topic: str, configs: Configs, count: int, brokers: Collection[str], now_ms: int
) -> StaticTopicPlan:
    """A plan with so many queues in all: new ones go to the brokers with the fewest."""
    known = current_plan(topic, configs, now_ms)
    chains = leaders(configs)
    if count <= len(chains):
        raise WrongUsageError(
            f"topic {topic} has {len(chains)} queues already; a static topic can only get more"
        )
    loads = dict.fromkeys(sorted({*brokers, *configs}), 0)
    for items in chains.values():
        loads[items[-1].bname or ""] += 1
    epoch = max(known.epoch + _EPOCH_STEP, now_ms)
    for queue in range(len(chains), count):
        broker = min(loads, key=lambda name: (loads[name], name))
        loads[broker] += 1
        config = configs.setdefault(broker, empty_config(topic, broker))
        item = _new_queue(config, broker)
        _detail(config).hosted_queues[queue] = [item]
    _finish(configs, epoch, count)
    leaders(configs)
    return _plan(topic, _CREATE, epoch, configs)


def moved(topic: str, configs: Configs, brokers: Collection[str], now_ms: int) -> StaticTopicPlan:
    """A plan with all queues on the given brokers, evenly, with as few moves as possible."""
    known = current_plan(topic, configs, now_ms)
    chains = leaders(configs)
    before = _counts(items[-1].bname or "" for items in chains.values())
    wanted = _even(len(chains), sorted(brokers, key=lambda name: (-before.get(name, 0), name)))
    waiting = []
    for queue, items in chains.items():
        leader = items[-1].bname or ""
        if wanted.get(leader, 0) > 0:
            wanted[leader] -= 1
        else:
            waiting.append(queue)
    epoch = max(known.epoch + _EPOCH_STEP, now_ms)
    targets = [name for name, number in wanted.items() for _ in range(number)]
    gaining, losing = set(), set()
    for queue, broker in zip(waiting, targets, strict=True):
        old = chains[queue]
        leader = old[-1].bname or ""
        config = configs.setdefault(broker, empty_config(topic, broker))
        item = _new_queue(config, broker)
        item.gen, item.logic_offset = old[-1].gen + 1, -1
        items = [*old, item]
        _detail(config).hosted_queues[queue] = items
        _detail(configs[leader]).hosted_queues[queue] = items
        gaining.add(broker)
        losing.add(leader)
    _finish(configs, epoch, len(chains))
    leaders(configs)
    plan = _plan(topic, _MOVE, epoch, configs)
    plan.broker_to_map_in, plan.broker_to_map_out = sorted(gaining), sorted(losing)
    return plan


def set_start_offsets(plan: StaticTopicPlan, broker: str, ends: Mapping[int, int]) -> None:
    """Decide where the queues that a broker lost continue; ``ends`` are its physical ends."""
    for items in _detail(plan.broker_config_map[broker]).hosted_queues.values():
        if len(items) < 2 or items[-1].logic_offset > 0 or items[-2].bname != broker:
            continue
        old = items[-2]
        if old.queue_id not in ends:
            raise FailedError(f"the end of queue {old.queue_id} on {broker} is not known")
        end = old.logic_offset + ends[old.queue_id] - old.start_offset
        blocks, rest = divmod(end, _OFFSET_BLOCK)
        blocks += 1 if rest < _OFFSET_BLOCK // 2 else 2
        items[-1].logic_offset = blocks * _OFFSET_BLOCK


def complete(plan: StaticTopicPlan, brokers: Iterable[str]) -> None:
    """Add the other brokers of the cluster: they have no queues, but know the mapping."""
    total = max(_detail(one).total_queues for one in plan.broker_config_map.values())
    for broker in brokers:
        if broker not in plan.broker_config_map:
            config = empty_config(plan.topic, broker)
            _finish({broker: config}, plan.epoch, total)
            plan.broker_config_map[broker] = config


def empty_config(topic: str, broker: str) -> TopicConfigAndMapping:
    detail = TopicQueueMappingDetail(bname=broker, topic=topic)
    return TopicConfigAndMapping(
        topic_name=topic, read_queue_nums=0, write_queue_nums=0, mapping_detail=detail
    )


def _detail(config: TopicConfigAndMapping) -> TopicQueueMappingDetail:
    detail = config.mapping_detail
    assert detail is not None
    return detail


def _new_queue(config: TopicConfigAndMapping, broker: str) -> QueueMappingItem:
    config.write_queue_nums += 1
    config.read_queue_nums += 1
    return QueueMappingItem(bname=broker, queue_id=config.write_queue_nums - 1)


def _finish(configs: Configs, epoch: int, total: int) -> None:
    for config in configs.values():
        _detail(config).epoch, _detail(config).total_queues = epoch, total


def _plan(topic: str, kind: str, epoch: int, configs: Configs) -> StaticTopicPlan:
    return StaticTopicPlan(topic=topic, type=kind, epoch=epoch, broker_config_map=configs)


def _counts(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def _even(total: int, names: list[str]) -> dict[str, int]:
    """How many of ``total`` each gets; the first ones get one more if it is uneven."""
    each, more = divmod(total, len(names))
    return {name: each + (1 if number < more else 0) for number, name in enumerate(names)}
