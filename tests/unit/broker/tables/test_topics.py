"""Topics and groups: creation on first use, changes by administrators, listeners."""

import logging
from pathlib import Path

import pytest

from goddard.broker.settings import BrokerConfig, Settings
from goddard.broker.tables.topics import Groups, Topics, topic_text
from goddard.protocol import names
from goddard.protocol.bodies import TopicConfig
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.protocol.responses import SystemFailedError
from goddard.store.tables import SubscriptionGroupTable, TopicTable
from tests.support.clock import ManualClock

_REMOTE = "127.0.0.1:5000"


def make_topics(folder: Path, **settings: str) -> Topics:
    properties = {"brokerName": "broker-a", **settings}
    clock = ManualClock()
    topics = Topics(
        TopicTable(folder, clock),
        Settings(BrokerConfig.from_properties(properties)),
        clock=clock,
    )
    topics.add_system_topics()
    return topics


def make_groups(folder: Path, **settings: str) -> Groups:
    groups = Groups(
        SubscriptionGroupTable(folder), Settings(BrokerConfig.from_properties(settings))
    )
    groups.add_system_groups()
    return groups


def test_a_new_broker_has_the_system_topics(tmp_path: Path) -> None:
    topics = make_topics(tmp_path)
    queues = {name: config.write_queue_nums for name, config in topics.configs.items()}
    assert queues == {
        "BenchmarkTest": 1024,
        "DefaultCluster": 16,
        "DefaultCluster_REPLY_TOPIC": 1,
        "OFFSET_MOVED_EVENT": 1,
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC": 1,
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC": 1,
        "RMQ_SYS_TRANS_HALF_TOPIC": 1,
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1,
        "SCHEDULE_TOPIC_XXXX": 18,
        "SELF_TEST_TOPIC": 1,
        "TBW102": 8,
        "broker-a": 1,
        "rmq_sys_REVIVE_LOG_DefaultCluster": 8,
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": 1,
        "rmq_sys_wheel_timer": 1,
    }
    perms = {name: config.perm for name, config in topics.configs.items() if config.perm != 6}
    assert perms == {
        "DefaultCluster": 7,
        "TBW102": 7,
        "broker-a": 7,
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": 1,
    }
    for name in topics.configs:
        assert topics.is_system(name), name
    assert not topics.is_system("orders")
    assert topics.data_version.counter == 0
    assert topics.data_version.timestamp > 0


def test_settings_leave_out_system_topics(tmp_path: Path) -> None:
    topics = make_topics(
        tmp_path,
        autoCreateTopicEnable="false",
        clusterTopicEnable="false",
        brokerTopicEnable="false",
        timerWheelEnable="false",
        traceTopicEnable="true",
        defaultTopicQueueNums="4",
    )
    assert names.AUTO_CREATE_TOPIC not in topics
    assert names.TIMER_TOPIC not in topics
    assert names.TRACE_TOPIC in topics
    cluster, broker = topics.get("DefaultCluster"), topics.get("broker-a")
    assert cluster is not None
    assert broker is not None
    assert (cluster.perm, broker.perm) == (1, 1)


def test_loaded_topics_are_kept(tmp_path: Path) -> None:
    topics = make_topics(tmp_path)
    topics.put(TopicConfig(topic_name="TBW102", write_queue_nums=3, read_queue_nums=3, perm=7))
    topics.table.save()
    again = Topics(TopicTable(tmp_path), Settings(BrokerConfig(broker_name="broker-a")))
    again.table.load()
    again.add_system_topics()
    kept = again.get("TBW102")
    assert kept is not None
    assert kept.write_queue_nums == 3
    assert again.data_version == topics.data_version


def test_a_topic_is_created_by_the_first_send(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics = make_topics(tmp_path)
    notified: list[list[str]] = []
    topics.add_listener(notified.append)
    version = topics.data_version
    with caplog.at_level(logging.INFO, logger="goddard.broker"):
        created = topics.create_on_send("orders", "TBW102", 4, _REMOTE)
    assert created == TopicConfig(
        topic_name="orders", read_queue_nums=4, write_queue_nums=4, perm=6
    )
    assert caplog.messages == [
        f"the topic orders not exist, producer: {_REMOTE}",
        "Create new topic by default topic:[TBW102] config:[TopicConfig [topicName=orders, "
        "readQueueNums=4, writeQueueNums=4, perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, "
        f"order=false, attributes={{}}]] producer:[{_REMOTE}]",
    ]
    assert notified == [["orders"]]
    assert topics.data_version.counter == version.counter + 1
    assert topics.table.is_changed

    assert topics.create_on_send("orders", "TBW102", 8, _REMOTE) is created
    assert notified == [["orders"]]


@pytest.mark.parametrize(("asked", "got"), [(4, 4), (8, 8), (1 << 30, 8), (0, 0), (-5, 0)])
def test_the_default_topic_limits_the_queues(tmp_path: Path, asked: int, got: int) -> None:
    created = make_topics(tmp_path).create_on_send("orders", "TBW102", asked, _REMOTE)
    assert created is not None
    assert created.write_queue_nums == created.read_queue_nums == got


def test_no_topic_is_created_without_a_topic_to_inherit_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics = make_topics(tmp_path)
    assert topics.create_on_send("orders", "nothing", 4, _REMOTE) is None
    assert topics.create_on_send("orders", "SELF_TEST_TOPIC", 4, _REMOTE) is None
    assert "orders" not in topics
    assert "the default topic[nothing] not exist" in caplog.text
    assert "the default topic[SELF_TEST_TOPIC] has no perm [6]" in caplog.text


def test_automatic_creation_can_be_disabled_while_running(tmp_path: Path) -> None:
    settings = Settings(BrokerConfig())
    topics = Topics(TopicTable(tmp_path), settings)
    topics.add_system_topics()
    settings.replace(settings.current.updated({"autoCreateTopicEnable": "false"}))
    assert topics.create_on_send("orders", "TBW102", 4, _REMOTE) is None
    # Topics are still created from other inheritable topics, as in RocketMQ.
    assert topics.create_on_send("orders", "DefaultCluster", 4, _REMOTE) is not None


def test_retry_topics_are_created_once(tmp_path: Path) -> None:
    topics = make_topics(tmp_path)
    retry = topics.ensure_topic("%RETRY%g", 1, 6)
    assert topics.ensure_topic("%RETRY%g", 9, 4) is retry
    ordered = topics.ensure_topic("%RETRY%g", 1, 6, order=True)
    assert ordered.order
    assert not retry.order  # the old object is not changed
    assert topics.is_ordered("%RETRY%g")
    assert topics.ensure_topic("%DLQ%g", -1, 2).write_queue_nums == 0
    assert topics.ensure_topic("%DLQ%h", 1 << 40, 2).write_queue_nums == 65_535


def test_administrators_put_and_delete(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topics = make_topics(tmp_path)
    notified: list[list[str]] = []
    topics.add_listener(notified.append)
    with caplog.at_level(logging.INFO, logger="goddard.broker"):
        topics.put(TopicConfig(topic_name="a"))
        topics.put_all([TopicConfig(topic_name="a", perm=4), TopicConfig(topic_name="b")])
        assert topics.delete("b") is not None
        assert topics.delete("b") is None
    assert notified == [["a"], ["a", "b"], ["b"]]
    assert "b" not in topics
    assert "update topic config, old:[TopicConfig [topicName=a" in caplog.text
    assert "delete topic config failed, topic: b not exists" in caplog.text


def test_order_configuration_marks_topics(tmp_path: Path) -> None:
    topics = make_topics(tmp_path)
    topics.put(TopicConfig(topic_name="a"))
    counter = topics.data_version.counter
    topics.set_ordered(["a", "unknown"])
    topics.set_ordered(["a"])
    assert topics.is_ordered("a")
    assert "unknown" not in topics
    assert topics.data_version.counter == counter + 1


def test_the_log_text_of_a_topic() -> None:
    config = TopicConfig(topic_name="t", perm=7, attributes={"message.type": "FIFO"}, order=True)
    assert "perm=RWX" in topic_text(config)
    assert "order=true, attributes={message.type=FIFO}]" in topic_text(config)


def test_a_new_broker_has_the_system_groups(tmp_path: Path) -> None:
    groups = make_groups(tmp_path)
    assert {"TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "CID_ONS-HTTP-PROXY"} <= set(groups.configs)
    assert len(groups) == 8


def test_a_group_is_created_by_its_first_use(tmp_path: Path) -> None:
    groups = make_groups(tmp_path)
    notified: list[list[str]] = []
    groups.add_listener(notified.append)
    created = groups.find("readers")
    assert created == SubscriptionGroupConfig(group_name="readers")
    assert groups.find("readers") is created
    assert notified == [["readers"]]
    assert groups.get("others") is None


@pytest.mark.parametrize("group", ["", " ", "a b", "g" * 256, "ä"])
def test_no_group_is_created_for_an_illegal_name(tmp_path: Path, group: str) -> None:
    groups = make_groups(tmp_path)
    assert groups.find(group) is None
    assert group not in groups


def test_no_group_is_created_when_creation_is_disabled(tmp_path: Path) -> None:
    groups = make_groups(tmp_path, autoCreateSubscriptionGroup="false")
    assert groups.find("readers") is None
    assert groups.find("CID_RMQ_SYS_new") is not None
    groups.put(SubscriptionGroupConfig(group_name="readers", retry_max_times=3))
    found = groups.find("readers")
    assert found is not None
    assert found.retry_max_times == 3


def test_groups_are_put_and_deleted(tmp_path: Path) -> None:
    groups = make_groups(tmp_path)
    groups.put_all([SubscriptionGroupConfig(group_name=name) for name in ("a", "b")])
    groups.disable_consuming("a")
    groups.disable_consuming("unknown")
    disabled = groups.get("a")
    assert disabled is not None
    assert not disabled.consume_enable
    groups.forbid("a", "t", 1)
    assert groups.table.forbidden("a", "t") == 1
    assert groups.delete("a") is not None
    assert groups.delete("a") is None
    assert groups.table.forbidden("a", "t") == 0


def test_the_number_of_topics_is_limited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topics = make_topics(tmp_path, maxTopics=str(len(make_topics(tmp_path / "other")) + 2))
    assert topics.create_on_send("A", names.AUTO_CREATE_TOPIC, 4, _REMOTE) is not None
    topics.put(TopicConfig(topic_name="B"))
    text = "C was not created: the broker has 17 topics, and maxTopics=17"
    with pytest.raises(SystemFailedError, match=text):
        topics.create_on_send("C", names.AUTO_CREATE_TOPIC, 4, _REMOTE)
    with pytest.raises(SystemFailedError):
        topics.put_all([TopicConfig(topic_name="A", perm=4), TopicConfig(topic_name="C")])
    assert text in caplog.text
    assert "C" not in topics
    topics.put(TopicConfig(topic_name="A", perm=4))
    assert topics.configs["A"].perm == 4, "topics that exist can be changed"
    assert topics.ensure_topic("%RETRY%G", 1, 6).topic_name in topics
    topics.delete("B")
    topics.delete("%RETRY%G")
    assert topics.create_on_send("C", names.AUTO_CREATE_TOPIC, 4, _REMOTE) is not None


def test_the_number_of_groups_is_limited(tmp_path: Path) -> None:
    groups = make_groups(tmp_path, maxSubscriptionGroups=str(len(make_groups(tmp_path / "x")) + 1))
    assert groups.find("A") is not None
    with pytest.raises(SystemFailedError, match="B was not created: the broker has 9 subscription"):
        groups.find("B")
    with pytest.raises(SystemFailedError):
        groups.put(SubscriptionGroupConfig(group_name="B"))
    assert groups.find("A") is not None
    groups.delete("A")
    assert groups.find("B") is not None
