"""The route table's rules, one at a time."""

import json

import pytest

from goddard.nameserver import views
from goddard.nameserver.routes import (
    BrokerAddress,
    LeavingBroker,
    MinBrokerIdChange,
    Outcome,
    RegisteringBroker,
    Registration,
    RoutePolicy,
    RouteTable,
)
from goddard.protocol.bodies import (
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigTable,
    TopicQueueMapping,
)

CLUSTER = "DefaultCluster"


def broker(
    broker_id: int = 0,
    name: str = "broker-a",
    address: str | None = None,
    *,
    cluster: str = CLUSTER,
    acting: bool | None = False,
    zone: str | None = None,
    timeout_ms: int | None = None,
) -> RegisteringBroker:
    return RegisteringBroker(
        cluster=cluster,
        name=name,
        address=address or f"10.0.0.{broker_id}:10911",
        broker_id=broker_id,
        ha_address=f"10.0.0.{broker_id}:10912",
        zone=zone,
        timeout_ms=timeout_ms,
        enable_acting_master=acting,
    )


def topics(
    *names: str, counter: int = 1, state: int = 0, perm: int = 6, queues: int = 4, flag: int = 0
) -> TopicConfigTable:
    return TopicConfigTable(
        data_version=DataVersion(counter=counter, state_version=state, timestamp=counter),
        topic_config_table={
            name: TopicConfig(
                topic_name=name,
                perm=perm,
                read_queue_nums=queues,
                write_queue_nums=queues,
                topic_sys_flag=flag,
            )
            for name in names
        },
    )


def register(
    table: RouteTable,
    who: RegisteringBroker,
    what: TopicConfigTable | None = None,
    *,
    connection: object = None,
    now_ms: int = 0,
    filter_servers: list[str] | None = None,
) -> Registration:
    what = topics("T1", "T2") if what is None else what
    return table.register(who, what, filter_servers, connection, now_ms)


def leaving(who: RegisteringBroker) -> LeavingBroker:
    return LeavingBroker(who.cluster, who.name, who.address, who.broker_id)


def body_of(table: RouteTable, topic: str, *, standard_json: bool = True) -> dict[str, object]:
    body = table.encoded_route(topic, standard_json=standard_json)
    assert body is not None
    decoded: dict[str, object] = json.loads(body)
    return decoded


def test_one_broker_and_two_topics_fill_the_five_tables() -> None:
    table = RouteTable()
    result = register(table, broker(), connection="c", now_ms=7, filter_servers=["f:1"])
    key = BrokerAddress(CLUSTER, "10.0.0.0:10911")
    assert result.outcome is Outcome.ACCEPTED
    assert result.is_new
    assert result.changed_topics == 2
    assert table.topic_queues.keys() == {"T1", "T2"}
    assert table.topic_queues["T1"].keys() == {"broker-a"}
    assert table.brokers.keys() == {"broker-a"}
    assert table.brokers["broker-a"].broker_addrs == {0: "10.0.0.0:10911"}
    assert table.clusters == {CLUSTER: {"broker-a"}}
    assert table.live.keys() == {key}
    assert table.live[key].last_update_ms == 7
    assert table.filter_servers == {key: ["f:1"]}


def test_a_route_lists_queues_and_brokers() -> None:
    table = RouteTable()
    register(table, broker())
    assert body_of(table, "T1") == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "10.0.0.0:10911"},
                "brokerName": "broker-a",
                "cluster": CLUSTER,
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 4,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        ],
    }
    bare = table.encoded_route("T1", standard_json=False)
    assert bare is not None
    assert b'"brokerAddrs":{0:"10.0.0.0:10911"}' in bare
    assert table.encoded_route("T3", standard_json=True) is None


def test_an_unchanged_version_does_not_store_topics_again() -> None:
    table = RouteTable()
    register(table, broker(), topics("T1", "T2", counter=1))
    table.wipe_write_permission("broker-a")
    assert register(table, broker(), topics("T1", "T2", counter=1)).changed_topics == 0
    assert table.topic_queues["T1"]["broker-a"].perm == 4
    # A topic that was deleted here is registered again.
    table.delete_topic("T2")
    assert register(table, broker(), topics("T1", "T2", counter=1)).changed_topics == 1
    assert register(table, broker(), topics("T1", "T2", counter=2)).changed_topics == 1
    assert table.topic_queues["T1"]["broker-a"].perm == 6


def test_topics_no_longer_registered_stay_unless_configured_otherwise() -> None:
    table = RouteTable()
    register(table, broker(), topics("T1", "T2", "T3"))
    register(table, broker(), topics("T1", "T2", counter=2))
    assert table.topic_queues.keys() == {"T1", "T2", "T3"}
    table.policy = RoutePolicy(delete_unregistered_topics=True)
    register(table, broker(), topics("T1", "T2", counter=3))
    assert table.topic_queues.keys() == {"T1", "T2"}
    with_mapping = topics("T1", counter=4)
    with_mapping.topic_queue_mapping_info_map = {"T1": TopicQueueMapping(bname="broker-a")}
    register(table, broker(), with_mapping)
    assert table.topic_queues.keys() == {"T1", "T2"}


def test_a_single_topic_needs_a_registered_broker() -> None:
    table = RouteTable()
    assert register(table, broker(), topics("T1")).outcome is Outcome.NOT_REGISTERED
    assert not table.brokers
    assert not table.clusters
    assert not table.live
    register(table, broker(), topics("T1", "T2"))
    assert register(table, broker(), topics("T9", counter=2)).changed_topics == 1
    assert table.topic_queues.keys() == {"T1", "T2", "T9"}


def test_the_same_address_has_one_id_only() -> None:
    table = RouteTable()
    register(table, broker(0))
    register(table, broker(1, address="slave:1"))
    register(table, broker(0, address="slave:1"), topics("T1", "T2", state=1))
    assert table.brokers["broker-a"].broker_addrs == {0: "slave:1"}


def test_an_older_state_does_not_replace_a_newer_one() -> None:
    table = RouteTable()
    register(table, broker(0, address="new:1"), topics("T1", "T2", state=5))
    register(table, broker(1, address="old:1"), topics("T1", "T2", state=4))
    result = register(table, broker(0, address="old:1"), topics("T1", "T2", state=4))
    assert result.outcome is Outcome.OUTDATED
    assert result.master_address is None
    assert table.brokers["broker-a"].broker_addrs == {0: "new:1", 1: "old:1"}
    assert BrokerAddress(CLUSTER, "old:1") not in table.live
    result = register(table, broker(0, address="old:1"), topics("T1", "T2", state=5))
    assert result.outcome is Outcome.ACCEPTED
    assert table.brokers["broker-a"].broker_addrs == {0: "old:1"}


def test_a_slave_learns_its_master() -> None:
    table = RouteTable()
    register(table, broker(0))
    result = register(table, broker(1))
    assert (result.master_address, result.ha_address) == ("10.0.0.0:10911", "10.0.0.0:10912")
    assert register(table, broker(0)).master_address is None


def test_a_slave_with_a_master_stores_no_queues() -> None:
    table = RouteTable()
    register(table, broker(0))
    register(table, broker(1), topics("T1", "T2", "T3", counter=9))
    assert "T3" not in table.topic_queues


def test_a_slave_of_an_old_version_without_master_stores_no_queues() -> None:
    table = RouteTable()
    register(table, broker(1, acting=None))
    assert table.route("T1") is None
    register(table, broker(2, acting=False, name="broker-b"))
    assert table.topic_queues["T1"].keys() == {"broker-b"}
    assert table.topic_queues["T1"]["broker-b"].perm == 6


def test_the_smallest_slave_acts_as_read_only_master() -> None:
    table = RouteTable()
    table.policy = RoutePolicy(support_acting_master=True)
    register(table, broker(0, acting=True), topics("T1", "rmq_sys_SYNC_BROKER_MEMBER_broker-a"))
    register(table, broker(2, acting=True))
    register(table, broker(1, acting=True))
    changes = table.unregister([leaving(broker(0))])
    assert changes == [
        MinBrokerIdChange(
            broker_name="broker-a",
            min_broker_id=1,
            min_broker_address="10.0.0.1:10911",
            offline_address="10.0.0.0:10911",
            ha_address=None,
            notify=("10.0.0.2:10911", "10.0.0.1:10911"),
        )
    ]
    route = table.route("T1")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911", 2: "10.0.0.2:10911"}
    assert route.queue_datas[0].perm == 4
    members = table.route("rmq_sys_SYNC_BROKER_MEMBER_broker-a")
    assert members is not None
    assert members.broker_datas[0].broker_addrs.keys() == {1, 2}
    # Only the route shows it as master, the table does not.
    assert table.brokers["broker-a"].broker_addrs.keys() == {1, 2}
    # After another registration, the acting master is still read-only.
    register(table, broker(1, acting=True), topics("T1", "T5", counter=5))
    assert table.topic_queues["T5"]["broker-a"].perm == 4
    # The master returns: queues are writable, and the others are notified.
    change = register(table, broker(0, acting=True), topics("T1", "T5", counter=6)).change
    assert change is not None
    assert change.min_broker_id == 0
    assert change.ha_address == "10.0.0.0:10912"
    assert set(change.notify) == {"10.0.0.1:10911", "10.0.0.2:10911"}
    assert table.topic_queues["T5"]["broker-a"].perm == 6


def test_without_support_the_route_shows_slaves_as_they_are() -> None:
    table = RouteTable()
    register(table, broker(0, acting=True))
    register(table, broker(1, acting=True))
    table.unregister([leaving(broker(0))])
    route = table.route("T1")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: "10.0.0.1:10911"}


def test_unregistering_the_last_member_removes_broker_cluster_and_topics() -> None:
    table = RouteTable()
    register(table, broker(0), filter_servers=["f:1"])
    register(table, broker(0, "broker-b", "b:1"), topics("T2", "T3"))
    assert table.unregister([leaving(broker(0))]) == []
    assert table.topic_queues.keys() == {"T2", "T3"}
    assert table.brokers.keys() == {"broker-b"}
    assert table.clusters == {CLUSTER: {"broker-b"}}
    assert not table.filter_servers
    table.unregister([leaving(broker(0, "broker-b", "b:1"))])
    assert not table.topic_queues
    assert not table.brokers
    assert not table.clusters
    assert not table.live


def test_a_batch_of_brokers_is_unregistered_in_one_step() -> None:
    table = RouteTable()
    members = [broker(number, acting=True) for number in range(3)]
    for member in members:
        register(table, member)
    changes = table.unregister([leaving(members[0]), leaving(members[1])])
    assert [(c.min_broker_id, c.notify) for c in changes] == [(2, ("10.0.0.2:10911",))]
    assert table.unregister([leaving(members[2])]) == []
    assert not table.topic_queues


def test_unregistering_an_unknown_broker_changes_nothing() -> None:
    table = RouteTable()
    register(table, broker(0))
    assert table.unregister([LeavingBroker(CLUSTER, "nobody", "x:1", 0)]) == []
    assert table.unregister([LeavingBroker("other", "broker-a", "x:1", 0)]) == []
    assert body_of(table, "T1")


def test_brokers_expire_after_their_timeout() -> None:
    table = RouteTable()
    register(table, broker(0), now_ms=1000)
    register(table, broker(1, timeout_ms=10_000), now_ms=1000)
    slave = BrokerAddress(CLUSTER, "10.0.0.1:10911")
    assert table.expired(11_000) == []
    assert [key for key, _ in table.expired(11_001)] == [slave]
    table.touch(slave, 11_001)
    assert table.expired(21_001) == []
    assert len(table.expired(121_001)) == 2
    table.touch(BrokerAddress(CLUSTER, "unknown:1"), 5)
    assert len(table.live) == 2


def test_brokers_of_a_connection_are_those_of_their_latest_registration() -> None:
    table = RouteTable()
    register(table, broker(0), connection="first")
    register(table, broker(0), connection="second")
    assert table.of_connection("first") == []
    (key,) = table.of_connection("second")
    assert table.leaving(key) == leaving(broker(0))


def test_a_live_entry_without_a_member_is_dropped_when_lost() -> None:
    table = RouteTable()
    register(table, broker(1, address="a:1"))
    register(table, broker(1, address="b:1"))
    stale = BrokerAddress(CLUSTER, "a:1")
    assert table.leaving(stale) is None
    assert stale not in table.live


def test_write_permission_is_wiped_and_added_with_a_count() -> None:
    table = RouteTable()
    register(table, broker(0), topics("T1", "T2"))
    register(table, broker(0, "broker-b", "b:1"), topics("T1", "T2", perm=2))
    assert table.wipe_write_permission("broker-a") == 2
    assert body_of(table, "T1")["queueDatas"] == [
        {
            "brokerName": name,
            "perm": perm,
            "readQueueNums": 4,
            "topicSysFlag": 0,
            "writeQueueNums": 4,
        }
        for name, perm in (("broker-b", 2), ("broker-a", 4))
    ]
    assert table.wipe_write_permission("nobody") == 0
    assert table.add_write_permission("broker-b") == 2
    assert table.topic_queues["T1"]["broker-b"].perm == 6


def test_a_topic_is_deleted_everywhere_or_in_one_cluster() -> None:
    table = RouteTable()
    register(table, broker(0))
    register(table, broker(0, "broker-b", "b:1", cluster="Other"))
    table.delete_topic("T1", "Nowhere")
    assert table.topic_queues["T1"].keys() == {"broker-a", "broker-b"}
    table.delete_topic("T1", "Other")
    assert table.topic_queues["T1"].keys() == {"broker-a"}
    table.delete_topic("T1", CLUSTER)
    assert "T1" not in table.topic_queues
    table.delete_topic("T2")
    table.delete_topic("T2")
    assert not table.topic_queues


def test_a_topic_is_registered_on_known_brokers_only() -> None:
    table = RouteTable()
    register(table, broker(0))
    queues = QueueData(broker_name="broker-a", perm=6, read_queue_nums=1, write_queue_nums=1)
    assert table.register_topic("New", [queues])
    assert body_of(table, "New")
    unknown = QueueData(broker_name="nobody", perm=6, read_queue_nums=1, write_queue_nums=1)
    assert not table.register_topic("Other", [queues, unknown])
    assert not table.register_topic("Other", [])
    assert "Other" not in table.topic_queues


def test_topic_lists() -> None:
    table = RouteTable()
    register(table, broker(0), topics("T1", "T2"))
    register(table, broker(0, "broker-b", "b:1", cluster="Other"), topics("U", "V", flag=1))
    register(table, broker(0, "broker-c", "c:1", cluster="Other"), topics("S", "R", flag=2))
    register(table, broker(0, "broker-d", "d:1", cluster="Other"), topics("W", "X", flag=3))
    assert set(views.all_topics(table).topic_list) == {*"UVSRWX", "T1", "T2"}
    assert set(views.topics_of_cluster(table, CLUSTER).topic_list) == {"T1", "T2"}
    assert views.topics_of_cluster(table, "Nowhere").topic_list == []
    system = views.system_topics(table)
    names = {CLUSTER, "Other", "broker-a", "broker-b", "broker-c", "broker-d"}
    assert set(system.topic_list) == names
    assert system.broker_addr == "10.0.0.0:10911"
    assert set(views.unit_topics(table).topic_list) == set("UVWX")
    assert set(views.unit_sub_topics(table).topic_list) == set("SRWX")
    assert set(views.unit_sub_topics_outside_unit(table).topic_list) == set("SR")
    assert views.system_topics(RouteTable()).broker_addr is None


def test_member_group_and_cluster_info() -> None:
    table = RouteTable()
    register(table, broker(0))
    register(table, broker(1))
    group = views.member_group(table, CLUSTER, "broker-a")
    assert group.broker_addrs == {0: "10.0.0.0:10911", 1: "10.0.0.1:10911"}
    assert views.member_group(table, CLUSTER, "nobody").broker_addrs == {}
    info = views.cluster_info(table)
    assert info.cluster_addr_table == {CLUSTER: ["broker-a"]}
    assert info.broker_addr_table["broker-a"].broker_addrs.keys() == {0, 1}


def test_brokers_are_listed_in_the_order_of_a_java_map() -> None:
    """The order of java.util.HashMap, in any order of registration."""
    names = ["broker-b", "broker-a", "broker-golden", "x"]
    table = RouteTable()
    for number, name in enumerate(names):
        register(table, broker(0, name, f"a:{number}"))
    route = table.route("T1")
    assert route is not None
    listed = [data.broker_name for data in route.queue_datas]
    assert listed == ["broker-b", "x", "broker-a", "broker-golden"]
    assert [data.broker_name for data in route.broker_datas] == listed
    assert list(views.cluster_info(table).broker_addr_table) == listed


@pytest.mark.parametrize("standard_json", [True, False])
def test_an_encoded_route_reflects_every_change(standard_json: bool) -> None:
    table = RouteTable()
    register(table, broker(0))

    def body() -> bytes | None:
        return table.encoded_route("T1", standard_json=standard_json)

    first = body()
    assert body() is first
    register(table, broker(0))
    assert body() is first
    seen = [first]
    for change in (
        lambda: register(table, broker(1)),
        lambda: register(table, broker(0), topics("T1", "T2", counter=2, queues=8)),
        lambda: table.wipe_write_permission("broker-a"),
        lambda: register(table, broker(0, "broker-b", "b:1")),
        lambda: register(table, broker(0), filter_servers=["f:1"]),
        lambda: register(table, broker(0, zone="z1")),
        lambda: table.unregister([leaving(broker(1))]),
        lambda: table.delete_topic("T1"),
    ):
        change()
        assert body() not in seen
        seen.append(body())
    assert body() is None


def test_order_settings_are_part_of_the_route() -> None:
    table = RouteTable()
    register(table, broker(0))
    plain = table.encoded_route("T1", standard_json=True)
    ordered = table.encoded_route("T1", standard_json=True, order_conf="broker-a:4")
    assert ordered is not None
    assert json.loads(ordered)["orderTopicConf"] == "broker-a:4"
    assert table.encoded_route("T1", standard_json=True) == plain


def test_static_topics_carry_their_mapping() -> None:
    table = RouteTable()
    with_mapping = topics("T1", "T2")
    mapping = TopicQueueMapping(bname="broker-a", topic="T1", total_queues=2, curr_id_map={0: 0})
    with_mapping.topic_queue_mapping_info_map = {"T1": mapping}
    register(table, broker(0), with_mapping)
    route = table.route("T1")
    assert route is not None
    assert route.topic_queue_mapping_by_broker == {"broker-a": mapping}
    other = table.route("T2")
    assert other is not None
    assert other.topic_queue_mapping_by_broker is None
    table.unregister([leaving(broker(0))])
    assert not table.queue_mappings


def test_a_zone_route_has_its_own_brokers_and_those_without_master() -> None:
    table = RouteTable()
    register(table, broker(0, "near", "n:1", zone="Z1"), filter_servers=["f:1"])
    register(table, broker(0, "far", "f:1", zone="z2"), filter_servers=["f:2"])
    register(table, broker(1, "orphan", "o:1", zone="z2"))
    route = table.route("T1")
    assert route is not None
    seen = views.in_zone(route, "z1")
    assert {data.broker_name for data in seen.broker_datas} == {"near", "orphan"}
    assert {data.broker_name for data in seen.queue_datas} == {"near", "orphan"}
    assert seen.filter_server_table == {"n:1": ["f:1"]}
