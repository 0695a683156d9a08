"""The name server's route tables: brokers, the topics that they serve, and which brokers are alive.

Pure: no I/O, no clock; ``now_ms`` is an argument and must not decrease. Not for concurrent use: the
loop owns the table, so a reader never sees half a registration. Changes that brokers must be
notified of (of the smallest broker id) are returned as values. Lists that are only read from the
tables are in ``views``.

The tables and their names in RocketMQ:
``topic_queues`` topicQueueTable, ``brokers`` brokerAddrTable, ``clusters`` clusterAddrTable,
``live`` brokerLiveTable, ``filter_servers`` filterServerTable, ``queue_mappings``
topicQueueMappingInfoTable.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from goddard.nameserver.javamap import in_map_order
from goddard.protocol.bodies import (
    BrokerData,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigTable,
    TopicQueueMapping,
    TopicRoute,
    encode_route,
)
from goddard.protocol.codes import MASTER_ID, Permission

# A broker that sets no other timeout expires after this time without registration or heartbeat.
BROKER_EXPIRY_MS: Final = 120_000

# Routes of these topics show the members of a broker without an acting master.
_MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"


class BrokerAddress(NamedTuple):
    """The key of the live table."""

    cluster: str
    address: str


@dataclass(slots=True)
class LiveBroker:
    """The latest registration or heartbeat of a broker, and the connection of the former."""

    last_update_ms: int
    timeout_ms: int
    data_version: DataVersion
    connection: object
    ha_address: str

    def is_expired(self, now_ms: int) -> bool:
        return self.last_update_ms + self.timeout_ms < now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteringBroker:
    """The broker of a registration. ``enable_acting_master`` is None before RocketMQ 5."""

    cluster: str
    name: str
    address: str
    broker_id: int
    ha_address: str
    zone: str | None = None
    timeout_ms: int | None = None
    enable_acting_master: bool | None = None


class LeavingBroker(NamedTuple):
    cluster: str
    name: str
    address: str
    broker_id: int


@dataclass(frozen=True, slots=True)
class MinBrokerIdChange:
    """The smallest id among a broker's members has changed; ``notify`` lists whom to notify."""

    broker_name: str
    min_broker_id: int
    min_broker_address: str
    offline_address: str | None
    ha_address: str | None
    notify: tuple[str, ...]


class Outcome(Enum):
    ACCEPTED = auto()
    # Another address has this broker id with a newer state; the registration is ignored.
    OUTDATED = auto()
    # The registration has a single topic, and the broker has not registered all topics yet.
    NOT_REGISTERED = auto()


@dataclass(frozen=True, slots=True)
class Registration:
    """The result of a registration. The addresses are set for a slave that has a master."""

    outcome: Outcome
    ha_address: str | None = None
    master_address: str | None = None
    is_new: bool = False
    changed_topics: int = 0
    change: MinBrokerIdChange | None = None


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """The settings that affect routes."""

    support_acting_master: bool = False
    delete_unregistered_topics: bool = False


@dataclass(slots=True)
class RouteTable:
    topic_queues: dict[str, dict[str, QueueData]] = field(default_factory=dict)
    brokers: dict[str, BrokerData] = field(default_factory=dict)
    clusters: dict[str, set[str]] = field(default_factory=dict)
    live: dict[BrokerAddress, LiveBroker] = field(default_factory=dict)
    filter_servers: dict[BrokerAddress, list[str]] = field(default_factory=dict)
    queue_mappings: dict[str, dict[str, TopicQueueMapping]] = field(default_factory=dict)
    # Increases whenever a cached route changes, so that callers can invalidate their own caches.
    generation: int = 0
    _policy: RoutePolicy = field(default=RoutePolicy(), init=False)
    # A cache of encoded routes by topic, then by variant. A change of a route drops its entries.
    _encoded: dict[str, dict[tuple[bool, str | None], bytes]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def policy(self) -> RoutePolicy:
        return self._policy

    @policy.setter
    def policy(self, policy: RoutePolicy) -> None:
        self._policy = policy
        self.forget_encoded()

    # Registration

    def register(
        self,
        broker: RegisteringBroker,
        topics: TopicConfigTable,
        filter_servers: Sequence[str] | None,
        connection: object,
        now_ms: int,
    ) -> Registration:
        """Register a broker and its topics.

        A rejected registration changes nothing, except that an outdated address is no longer live.
        """
        key = BrokerAddress(broker.cluster, broker.address)
        known = self.brokers.get(broker.name)
        members = dict(known.broker_addrs) if known is not None else {}
        is_smaller_id = bool(members) and broker.broker_id < min(members)
        # A slave that became master registers with another id; an address has one id only.
        for member_id, address in list(members.items()):
            if address == broker.address and member_id != broker.broker_id:
                del members[member_id]
        if self._is_outdated(broker, members, topics.data_version):
            self.live.pop(key, None)
            return Registration(Outcome.OUTDATED)
        if broker.broker_id not in members and len(topics.topic_config_table) == 1:
            return Registration(Outcome.NOT_REGISTERED)

        is_first = not members.get(broker.broker_id)
        members[broker.broker_id] = broker.address
        data = self._store_members(broker, known, members)
        changed_topics = self._store_topics(broker, data, topics, key, is_first)

        previous = self.live.get(key)
        self.live[key] = LiveBroker(
            last_update_ms=now_ms,
            timeout_ms=BROKER_EXPIRY_MS if broker.timeout_ms is None else broker.timeout_ms,
            data_version=topics.data_version,
            connection=connection,
            ha_address=broker.ha_address,
        )
        if filter_servers is not None:
            self._store_filter_servers(key, filter_servers)
        ha_address, master_address = self._master_of(broker, members)
        change = None
        if is_smaller_id:
            change = _min_id_change(broker.name, members, None, broker.ha_address)
        return Registration(
            Outcome.ACCEPTED,
            ha_address=ha_address,
            master_address=master_address,
            is_new=previous is None,
            changed_topics=changed_topics,
            change=change,
        )

    def _is_outdated(
        self, broker: RegisteringBroker, members: Mapping[int, str], version: DataVersion
    ) -> bool:
        holder = members.get(broker.broker_id)
        if holder is None or holder == broker.address:
            return False
        living = self.live.get(BrokerAddress(broker.cluster, holder))
        return living is not None and living.data_version.state_version > version.state_version

    def _store_members(
        self, broker: RegisteringBroker, known: BrokerData | None, members: dict[int, str]
    ) -> BrokerData:
        self.clusters.setdefault(broker.cluster, set()).add(broker.name)
        data = BrokerData(
            cluster=broker.cluster if known is None else known.cluster,
            broker_name=broker.name,
            broker_addrs=members,
            zone_name=broker.zone,
            enable_acting_master=bool(broker.enable_acting_master),
        )
        if data != known:
            self.brokers[broker.name] = data
            self.forget_encoded()
        return data

    def _store_topics(
        self,
        broker: RegisteringBroker,
        data: BrokerData,
        topics: TopicConfigTable,
        key: BrokerAddress,
        is_first: bool,
    ) -> int:
        """Store the queues of a master, or of the smallest slave if there is no master."""
        is_smallest_slave = (
            broker.enable_acting_master is not None
            and broker.broker_id != MASTER_ID
            and broker.broker_id == min(data.broker_addrs)
        )
        if broker.broker_id != MASTER_ID and not is_smallest_slave:
            return 0
        table = topics.topic_config_table
        mappings = topics.topic_queue_mapping_info_map
        if self._policy.delete_unregistered_topics and not mappings:
            for topic in [name for name in self._topics_of(broker.name) if name not in table]:
                self._drop_queues(topic, broker.name)
        is_changed = is_first or self.is_changed(key, topics.data_version)
        # An acting master serves reads only.
        mask = ~0
        if is_smallest_slave and data.enable_acting_master:
            mask = ~int(Permission.WRITE)
        count = 0
        for key_name, config in table.items():
            topic = config.topic_name or key_name
            if is_changed or broker.name not in self.topic_queues.get(topic, ()):
                count += self._store_queues(broker.name, topic, config, mask)
        if is_changed:
            for topic, mapping in mappings.items():
                mapped = mapping.bname or broker.name
                self.queue_mappings.setdefault(topic, {})[mapped] = mapping
                self._forget_route(topic)
        return count

    def _store_queues(self, broker_name: str, topic: str, config: TopicConfig, mask: int) -> bool:
        queues = QueueData(
            broker_name=broker_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm & mask,
            topic_sys_flag=config.topic_sys_flag,
        )
        by_broker = self.topic_queues.get(topic)
        if by_broker is None:
            self.topic_queues[topic] = {broker_name: queues}
        elif by_broker.get(broker_name) == queues:
            return False
        else:
            by_broker[broker_name] = queues
            self._forget_route(topic)
        return True

    def _store_filter_servers(self, key: BrokerAddress, servers: Sequence[str]) -> None:
        if servers:
            self.filter_servers[key] = list(servers)
        elif self.filter_servers.pop(key, None) is None:
            return
        self.forget_encoded()

    def _master_of(
        self, broker: RegisteringBroker, members: Mapping[int, str]
    ) -> tuple[str | None, str | None]:
        master = members.get(MASTER_ID)
        if broker.broker_id == MASTER_ID or master is None:
            return None, None
        living = self.live.get(BrokerAddress(broker.cluster, master))
        return (None, None) if living is None else (living.ha_address, master)

    # Liveness

    def touch(self, key: BrokerAddress, now_ms: int) -> None:
        """Record a heartbeat; ignored if the broker is not registered."""
        living = self.live.get(key)
        if living is not None:
            living.last_update_ms = now_ms

    def data_version(self, key: BrokerAddress) -> DataVersion | None:
        living = self.live.get(key)
        return None if living is None else living.data_version

    def is_changed(self, key: BrokerAddress, version: DataVersion) -> bool:
        """Whether a broker's topics differ from those of its last registration."""
        return self.data_version(key) != version

    def expired(self, now_ms: int) -> list[tuple[BrokerAddress, LiveBroker]]:
        return [item for item in self.live.items() if item[1].is_expired(now_ms)]

    def of_connection(self, connection: object) -> list[BrokerAddress]:
        """The brokers whose latest registration came over this connection."""
        return [key for key, living in self.live.items() if living.connection is connection]

    def leaving(self, key: BrokerAddress) -> LeavingBroker | None:
        """What to unregister for a lost live entry; None if its address is not a member."""
        for name, data in self.brokers.items():
            if data.cluster == key.cluster:
                for broker_id, address in data.broker_addrs.items():
                    if address == key.address:
                        return LeavingBroker(key.cluster, name, address, broker_id)
        self.live.pop(key, None)
        return None

    # Unregistration

    def unregister(self, leaving: Iterable[LeavingBroker]) -> list[MinBrokerIdChange]:
        """Remove brokers; a broker name without members loses its queues, too."""
        removed: set[str] = set()
        reduced: set[str] = set()
        offline: dict[str, str] = {}
        for broker in leaving:
            key = BrokerAddress(broker.cluster, broker.address)
            self.live.pop(key, None)
            self.filter_servers.pop(key, None)
            data = self.brokers.get(broker.name)
            if data is None:
                continue
            members = data.broker_addrs
            had_min_id = bool(members) and broker.broker_id == min(members)
            data.broker_addrs = {i: a for i, a in members.items() if a != broker.address}
            if data.broker_addrs:
                reduced.add(broker.name)
                if had_min_id and data.enable_acting_master:
                    offline[broker.name] = broker.address
                continue
            del self.brokers[broker.name]
            removed.add(broker.name)
            names = self.clusters.get(broker.cluster)
            if names is not None:
                names.discard(broker.name)
                if not names:
                    del self.clusters[broker.cluster]
        if removed or reduced:
            self.forget_encoded()
        self._clean_topics(removed, reduced - removed)
        return [
            _min_id_change(name, self.brokers[name].broker_addrs, address, None)
            for name, address in offline.items()
            if name not in removed
        ]

    def _clean_topics(self, removed: set[str], reduced: set[str]) -> None:
        read_only = {
            name
            for name in reduced
            if self.brokers[name].enable_acting_master and min(self.brokers[name].broker_addrs) > 0
        }
        if not removed and not read_only:
            return
        emptied = []
        for topic, by_broker in self.topic_queues.items():
            for name in removed:
                by_broker.pop(name, None)
            for name in read_only & by_broker.keys():
                by_broker[name].perm &= ~int(Permission.WRITE)
            if not by_broker:
                emptied.append(topic)
        for topic in emptied:
            del self.topic_queues[topic]
        for topic, mappings in list(self.queue_mappings.items()):
            for name in removed:
                mappings.pop(name, None)
            if not mappings:
                del self.queue_mappings[topic]

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        by_broker = self.topic_queues.get(topic, {})
        by_broker.pop(broker_name, None)
        mappings = self.queue_mappings.get(topic, {})
        mappings.pop(broker_name, None)
        self._forget_route(topic)
        if not mappings:
            self.queue_mappings.pop(topic, None)
        if not by_broker:
            self.topic_queues.pop(topic, None)

    # Administration

    def register_topic(self, topic: str, queues: Sequence[QueueData]) -> bool:
        """Set a topic's queues on some brokers; changes nothing if one of them is unknown."""
        if not queues or any(data.broker_name not in self.brokers for data in queues):
            return False
        by_broker = self.topic_queues.setdefault(topic, {})
        by_broker.update((data.broker_name, data) for data in queues)
        self._forget_route(topic)
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, from all brokers or from those of one cluster."""
        names = set(self.topic_queues.get(topic, ()))
        if cluster:
            names &= self.clusters.get(cluster, set())
        for name in names:
            self._drop_queues(topic, name)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Make a broker's queues read-only; returns the number of topics."""
        count = 0
        for data in self._queues_of(broker_name):
            data.perm &= ~int(Permission.WRITE)
            count += 1
        return count

    def add_write_permission(self, broker_name: str) -> int:
        """Make a broker's queues readable and writable; returns the number of topics."""
        count = 0
        for data in self._queues_of(broker_name):
            data.perm = int(Permission.READ | Permission.WRITE)
            count += 1
        return count

    def _queues_of(self, broker_name: str) -> Iterator[QueueData]:
        for topic in self._topics_of(broker_name):
            self._forget_route(topic)
            yield self.topic_queues[topic][broker_name]

    def _topics_of(self, broker_name: str) -> list[str]:
        return [t for t, by_broker in self.topic_queues.items() if broker_name in by_broker]

    # Routes

    def route(self, topic: str, order_conf: str | None = None) -> TopicRoute | None:
        """The queues and brokers of a topic; None if no broker serves it."""
        by_broker = self.topic_queues.get(topic)
        if not by_broker:
            return None
        names = in_map_order(by_broker)
        queues = [by_broker[name] for name in names]
        found = [self.brokers[name] for name in names if name in self.brokers]
        if not found:
            return None
        filter_servers = {
            address: self.filter_servers[key]
            for data in found
            for address in data.broker_addrs.values()
            if (key := BrokerAddress(data.cluster, address)) in self.filter_servers
        }
        if self._policy.support_acting_master and not topic.startswith(_MEMBER_TOPIC_PREFIX):
            found = [_with_acting_master(data, by_broker[data.broker_name]) for data in found]
        return TopicRoute(
            order_topic_conf=order_conf,
            queue_datas=queues,
            broker_datas=found,
            filter_server_table=filter_servers,
            topic_queue_mapping_by_broker=self.queue_mappings.get(topic),
        )

    def encoded_route(
        self, topic: str, *, standard_json: bool, order_conf: str | None = None
    ) -> bytes | None:
        """The route as a response body; cached until it changes."""
        variants = self._encoded.get(topic)
        if variants is not None:
            body = variants.get((standard_json, order_conf))
            if body is not None:
                return body
        route = self.route(topic, order_conf)
        if route is None:
            return None
        body = encode_route(route, standard=standard_json)
        self._encoded.setdefault(topic, {})[standard_json, order_conf] = body
        return body

    def forget_encoded(self) -> None:
        """Drop all encoded routes; also for changes outside the table, such as order settings."""
        self._encoded.clear()
        self.generation += 1

    def _forget_route(self, topic: str) -> None:
        if self._encoded.pop(topic, None) is not None:
            self.generation += 1


def _with_acting_master(data: BrokerData, queues: QueueData) -> BrokerData:
    """Show the smallest slave as master if there is no master and the queues are read-only."""
    members = data.broker_addrs
    if (
        not members
        or MASTER_ID in members
        or not data.enable_acting_master
        or queues.perm & Permission.WRITE
    ):
        return data
    smallest = min(members)
    others = {member: address for member, address in members.items() if member != smallest}
    return BrokerData(
        cluster=data.cluster,
        broker_name=data.broker_name,
        broker_addrs={MASTER_ID: members[smallest], **others},
        zone_name=data.zone_name,
        enable_acting_master=data.enable_acting_master,
    )


def _min_id_change(
    broker_name: str, members: Mapping[int, str], offline: str | None, ha_address: str | None
) -> MinBrokerIdChange:
    smallest = min(members)
    # All members are notified of a broker that left, the other members of one that joined.
    notify_all = offline is not None or len(members) == 1
    return MinBrokerIdChange(
        broker_name=broker_name,
        min_broker_id=smallest,
        min_broker_address=members[smallest],
        offline_address=offline,
        ha_address=ha_address,
        notify=tuple(a for i, a in members.items() if notify_all or i != smallest),
    )
