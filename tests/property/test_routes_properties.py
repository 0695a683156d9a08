"""The route table against a simple model, over any sequence of operations.

The model keeps a flat list of facts and computes every answer from scratch; the table keeps
indexes, shortcuts and encoded answers. After any sequence, both give the same routes.
"""

import json
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from goddard.nameserver.routes import (
    BrokerAddress,
    LeavingBroker,
    Outcome,
    RegisteringBroker,
    RoutePolicy,
    RouteTable,
)
from goddard.nameserver.views import all_topics
from goddard.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable

NAMES = st.sampled_from(["broker-a", "broker-b", "broker-c"])
IDS = st.integers(0, 3)
ADDRESSES = st.sampled_from([f"10.0.0.{n}:10911" for n in range(5)])
TOPICS = st.sets(st.sampled_from(["T1", "T2", "T3", "T4"]), max_size=4)
ALL_TOPICS = ["T1", "T2", "T3", "T4", "rmq_sys_SYNC_BROKER_MEMBER_x"]
CLUSTER = "C"
WRITE = 2


@dataclass
class Member:
    """One address of one broker name."""

    name: str
    broker_id: int
    address: str


@dataclass
class Live:
    address: str
    version: DataVersion
    seen_ms: int
    timeout_ms: int
    connection: int


class RouteTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.members: list[Member] = []
        self.acting: dict[str, bool] = {}
        self.live: dict[str, Live] = {}
        # (topic, broker name) -> (queues, permission)
        self.queues: dict[tuple[str, str], tuple[int, int]] = {}
        self.now_ms = 0

    @initialize(support=st.booleans(), delete=st.booleans())
    def choose_policy(self, support: bool, delete: bool) -> None:
        self.table.policy = RoutePolicy(
            support_acting_master=support, delete_unregistered_topics=delete
        )

    def members_of(self, name: str) -> dict[int, str]:
        return {m.broker_id: m.address for m in self.members if m.name == name}

    @rule(
        name=NAMES,
        broker_id=IDS,
        address=ADDRESSES,
        topics=TOPICS,
        counter=st.integers(0, 2),
        state=st.integers(0, 1),
        queues=st.integers(1, 2),
        acting=st.sampled_from([None, False, True]),
        timeout_ms=st.sampled_from([None, 1000]),
        connection=st.integers(0, 2),
    )
    def register(
        self,
        name: str,
        broker_id: int,
        address: str,
        topics: set[str],
        counter: int,
        state: int,
        queues: int,
        acting: bool | None,
        timeout_ms: int | None,
        connection: int,
    ) -> None:
        version = DataVersion(counter=counter, state_version=state, timestamp=0)
        result = self.table.register(
            RegisteringBroker(
                cluster=CLUSTER,
                name=name,
                address=address,
                broker_id=broker_id,
                ha_address="ha",
                timeout_ms=timeout_ms,
                enable_acting_master=acting,
            ),
            TopicConfigTable(
                data_version=version,
                topic_config_table={
                    topic: TopicConfig(
                        topic_name=topic, read_queue_nums=queues, write_queue_nums=queues
                    )
                    for topic in topics
                },
            ),
            [],
            connection,
            self.now_ms,
        )
        before = self.members_of(name)
        after = {i: a for i, a in before.items() if a != address or i == broker_id}
        holder = after.get(broker_id)
        if (
            holder not in (None, address)
            and holder in self.live
            and self.live[holder].version.state_version > state
        ):
            assert result.outcome is Outcome.OUTDATED
            self.live.pop(address, None)
            return
        if broker_id not in after and len(topics) == 1:
            assert result.outcome is Outcome.NOT_REGISTERED
            return
        assert result.outcome is Outcome.ACCEPTED
        is_first = broker_id not in after
        after[broker_id] = address
        self.members = [m for m in self.members if m.name != name]
        self.members += [Member(name, i, a) for i, a in after.items()]
        self.acting[name] = bool(acting)
        known = self.live.get(address)
        is_changed = is_first or known is None or known.version != version
        is_prime = acting is not None and broker_id != 0 and broker_id == min(after)
        if broker_id == 0 or is_prime:
            if self.table.policy.delete_unregistered_topics:
                self.queues = {
                    key: value
                    for key, value in self.queues.items()
                    if key[1] != name or key[0] in topics
                }
            for topic in topics:
                if is_changed or (topic, name) not in self.queues:
                    perm = 6 & ~WRITE if is_prime and acting else 6
                    self.queues[topic, name] = (queues, perm)
        self.live[address] = Live(address, version, self.now_ms, timeout_ms or 120_000, connection)
        assert (result.change is not None) == (bool(before) and broker_id < min(before))
        if broker_id != 0 and 0 in after and after[0] in self.live:
            assert result.master_address == after[0]
        else:
            assert result.master_address is None

    def forget(self, leaving: list[LeavingBroker]) -> None:
        touched = set()
        for one in leaving:
            self.live.pop(one.address, None)
            if self.members_of(one.name):
                touched.add(one.name)
            self.members = [
                m for m in self.members if (m.name, m.address) != (one.name, one.address)
            ]
        for name in touched:
            left = self.members_of(name)
            for key in [key for key in self.queues if key[1] == name]:
                if not left:
                    del self.queues[key]
                elif self.acting[name] and min(left) > 0:
                    queues, perm = self.queues[key]
                    self.queues[key] = (queues, perm & ~WRITE)

    @rule(batch=st.lists(st.tuples(NAMES, ADDRESSES, IDS), min_size=1, max_size=3))
    def unregister(self, batch: list[tuple[str, str, int]]) -> None:
        leaving = [LeavingBroker(CLUSTER, name, address, i) for name, address, i in batch]
        changes = self.table.unregister(leaving)
        self.forget(leaving)
        for change in changes:
            left = self.members_of(change.broker_name)
            assert change.min_broker_id == min(left)
            assert set(change.notify) == set(left.values())

    @rule(connection=st.integers(0, 2))
    def lose_connection(self, connection: int) -> None:
        keys = self.table.of_connection(connection)
        assert {key.address for key in keys} == {
            live.address for live in self.live.values() if live.connection == connection
        }
        self.lose(keys)

    @rule(elapsed_ms=st.sampled_from([500, 1500, 130_000]))
    def pass_time(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        keys = [key for key, _ in self.table.expired(self.now_ms)]
        assert {key.address for key in keys} == {
            live.address
            for live in self.live.values()
            if live.seen_ms + live.timeout_ms < self.now_ms
        }
        self.lose(keys)

    def lose(self, keys: list[BrokerAddress]) -> None:
        for key in keys:
            leaving = self.table.leaving(key)
            if leaving is None:
                self.live.pop(key.address, None)
            else:
                self.table.unregister([leaving])
                self.forget([leaving])

    @rule(address=ADDRESSES)
    def heartbeat(self, address: str) -> None:
        self.table.touch(BrokerAddress(CLUSTER, address), self.now_ms)
        if address in self.live:
            self.live[address].seen_ms = self.now_ms

    @rule(name=NAMES, adds=st.booleans())
    def change_permission(self, name: str, adds: bool) -> None:
        change = self.table.add_write_permission if adds else self.table.wipe_write_permission
        owned = [key for key in self.queues if key[1] == name]
        assert change(name) == len(owned)
        for key in owned:
            queues, perm = self.queues[key]
            self.queues[key] = (queues, 6 if adds else perm & ~WRITE)

    @rule(topic=st.sampled_from(ALL_TOPICS), cluster=st.sampled_from([None, CLUSTER, "other"]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.table.delete_topic(topic, cluster)
        if cluster != "other":
            self.queues = {k: v for k, v in self.queues.items() if k[0] != topic}

    @rule(support=st.booleans())
    def change_policy(self, support: bool) -> None:
        self.table.policy = RoutePolicy(
            support_acting_master=support,
            delete_unregistered_topics=self.table.policy.delete_unregistered_topics,
        )

    @invariant()
    def the_tables_agree(self) -> None:
        names = {m.name for m in self.members}
        assert set(self.table.brokers) == names
        assert self.table.clusters == ({CLUSTER: names} if names else {})
        for name in names:
            assert self.table.brokers[name].broker_addrs == self.members_of(name)
        assert {key.address for key in self.table.live} == set(self.live)

    @invariant()
    def the_routes_agree(self) -> None:
        assert set(all_topics(self.table).topic_list) == {topic for topic, _ in self.queues}
        for topic in ALL_TOPICS:
            body = self.table.encoded_route(topic, standard_json=True)
            owners = sorted(name for t, name in self.queues if t == topic)
            if not owners:
                assert body is None
                continue
            assert body is not None
            route = json.loads(body)
            assert {
                (data["brokerName"], data["readQueueNums"], data["perm"])
                for data in route["queueDatas"]
            } == {(name, *self.queues[topic, name]) for name in owners}
            assert {data["brokerName"]: data["brokerAddrs"] for data in route["brokerDatas"]} == {
                name: self.shown_members(topic, name) for name in owners
            }

    def shown_members(self, topic: str, name: str) -> dict[str, str]:
        members = self.members_of(name)
        is_read_only = not self.queues[topic, name][1] & WRITE
        if (
            self.table.policy.support_acting_master
            and self.acting[name]
            and 0 not in members
            and is_read_only
        ):
            smallest = min(members)
            members = {0 if i == smallest else i: a for i, a in members.items()}
        return {str(i): a for i, a in members.items()}


# It takes seconds, but shrinking a failure takes minutes.
@pytest.mark.timeout(600)
def test_the_table_agrees_with_the_model() -> None:
    run_state_machine_as_test(
        RouteTableMachine,
        settings=settings(max_examples=150, stateful_step_count=30),
    )
