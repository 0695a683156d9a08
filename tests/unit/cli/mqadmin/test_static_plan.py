"""Plans of static topics: which broker holds which queue."""

import pytest

from goddard.cli.mqadmin.messaging.static_plan import (
    Configs,
    complete,
    current_plan,
    leaders,
    moved,
    set_start_offsets,
    with_queues,
)
from goddard.cli.terminal.mistakes import FailedError, WrongUsageError

T = 1_700_000_000_000


def new_topic(count: int, *brokers: str) -> Configs:
    return with_queues("t", {}, count, brokers, T).broker_config_map


def held(configs: Configs) -> dict[int, str | None]:
    return {queue: items[-1].bname for queue, items in sorted(leaders(configs).items())}


def test_new_queues_go_to_the_brokers_with_the_fewest() -> None:
    configs = new_topic(3, "a", "b")
    assert held(configs) == {0: "a", 1: "b", 2: "a"}
    assert (configs["a"].write_queue_nums, configs["b"].read_queue_nums) == (2, 1)
    plan = with_queues("t", configs, 6, {"c"}, T)
    assert held(plan.broker_config_map) == {0: "a", 1: "b", 2: "a", 3: "c", 4: "b", 5: "c"}
    assert plan.epoch == T + 2_000
    details = [config.mapping_detail for config in plan.broker_config_map.values()]
    assert {(one.epoch, one.total_queues) for one in details if one} == {(plan.epoch, 6)}


def test_a_static_topic_cannot_lose_queues() -> None:
    with pytest.raises(WrongUsageError, match="has 3 queues already"):
        with_queues("t", new_topic(3, "a"), 3, {"a"}, T)


def test_queues_move_and_continue_at_a_later_offset() -> None:
    configs = new_topic(4, "a", "b")
    plan = moved("t", configs, {"b", "c"}, T)
    assert held(plan.broker_config_map) == {0: "c", 1: "b", 2: "c", 3: "b"}
    assert (plan.broker_to_map_in, plan.broker_to_map_out) == (["c"], ["a"])
    chain = leaders(plan.broker_config_map)[0]
    assert [(one.bname, one.gen, one.logic_offset) for one in chain] == [("a", 0, 0), ("c", 1, -1)]
    # 10,000 offsets are a block: a queue that ends late in a block skips the next one as well.
    set_start_offsets(plan, "a", {0: 3, 1: 9_000})
    starts = {queue: items[-1].logic_offset for queue, items in leaders(configs).items()}
    assert (starts[0], starts[2]) == (10_000, 20_000)


def test_the_end_of_a_queue_that_moves_must_be_known() -> None:
    plan = moved("t", new_topic(2, "a"), {"b"}, T)
    with pytest.raises(FailedError, match="the end of queue 0 on a is not known"):
        set_start_offsets(plan, "a", {})


def test_the_other_brokers_of_the_cluster_know_the_mapping() -> None:
    plan = with_queues("t", {}, 1, {"a"}, T)
    complete(plan, ["a", "b"])
    other = plan.broker_config_map["b"]
    assert (other.read_queue_nums, other.write_queue_nums) == (0, 0)
    assert other.mapping_detail is not None
    assert (other.mapping_detail.total_queues, other.mapping_detail.epoch) == (1, plan.epoch)


def test_inconsistent_mappings_are_refused() -> None:
    configs = new_topic(2, "a", "b")
    detail = configs["b"].mapping_detail
    assert detail is not None
    detail.epoch += 1
    with pytest.raises(FailedError, match="apply the last plan again with -mf"):
        current_plan("t", configs, T)
    detail.epoch -= 1
    detail.hosted_queues = {}
    with pytest.raises(FailedError, match="2 queues are needed, and 1 have a leader"):
        current_plan("t", configs, T)
    configs["b"].mapping_detail = None
    with pytest.raises(FailedError, match="on broker b is not a static topic"):
        current_plan("t", configs, T)
