"""The topics and consumer groups of a broker: looking up, creating on first use, changing.

Both belong to the loop. A change moves the table's data version, is told to the listeners at once
(registration with the name servers, saving of the file) and logged in RocketMQ's words, which
people search their logs for. Configurations are replaced, never changed in place: a caller may keep
the one it has.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from goddard.broker.settings import BrokerConfig, Settings
from goddard.clock import Clock, SystemClock
from goddard.protocol import names
from goddard.protocol.bodies import DataVersion, TopicConfig
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.protocol.codes import Permission
from goddard.protocol.responses import SystemFailedError
from goddard.store.tables import SubscriptionGroupTable, TopicTable

_log = logging.getLogger(__name__)

# Java keeps 18 queues for delays, one per level of its default list.
_DELAY_QUEUES: Final = 18
_BENCHMARK_QUEUES: Final = 1024
_MAX_QUEUES: Final = 65_535
_READ_WRITE: Final = int(Permission.READ | Permission.WRITE)
_INHERIT: Final = int(Permission.INHERIT)

_SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


class Topics:
    """``topics.json`` in force. ``add_system_topics`` once after the table was loaded."""

    def __init__(
        self, table: TopicTable, settings: Settings, *, clock: Clock | None = None
    ) -> None:
        self.table = table
        self._settings = settings
        self._clock = clock or SystemClock()
        self._listeners: list[Callable[[list[str]], None]] = []
        # Created by sends, and not on the disk yet: nothing sent to them is acknowledged.
        self.unsaved: set[str] = set()
        self._own_system_topics: set[str] = set()

    def __contains__(self, topic: str) -> bool:
        return topic in self.table

    def __len__(self) -> int:
        return len(self.table)

    @property
    def configs(self) -> Mapping[str, TopicConfig]:
        return self.table.configs

    @property
    def data_version(self) -> DataVersion:
        return self.table.data_version

    @property
    def system_topics(self) -> frozenset[str]:
        """The names reserved in every cluster, and those of this broker and its cluster."""
        return names.SYSTEM_TOPICS | self._own_system_topics

    def is_system(self, topic: str) -> bool:
        return topic in self._own_system_topics or names.is_system_topic(topic)

    def get(self, topic: str) -> TopicConfig | None:
        return self.table.get(topic)

    def is_ordered(self, topic: str) -> bool:
        config = self.table.get(topic)
        return config is not None and config.order

    def add_listener(self, listener: Callable[[list[str]], None]) -> None:
        """Call ``listener`` with the names of topics that were created, changed or deleted."""
        self._listeners.append(listener)

    def add_system_topics(self) -> None:
        """Add what every broker has; a topic that was loaded from the file stays as it is."""
        for config in _system_topics(self._settings.current):
            self._own_system_topics.add(config.topic_name)
            self.table.put_missing(config.topic_name, config)
        if self.table.data_version.timestamp == 0:
            # A broker that starts again must not look like the empty table of another.
            self.table.data_version = DataVersion(timestamp=self._clock.now_ms())

    def restore(self, stored: Iterable[tuple[str, int]]) -> None:
        """Bring back topics that the file lost; ``stored``: queues with messages younger than it.

        A topic that a send created is acknowledged before the file has it; a crash may come between
        the two. Its messages must not be lost because nobody knows their topic. Queues whose
        messages are all older are of a topic that was deleted, and that recovery found in the log.
        """
        counts: dict[str, int] = {}
        for topic, queue_id in stored:
            if self.table.get(topic) is None:
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        least = self._settings.current.default_topic_queues
        for topic, count in sorted(counts.items()):
            is_single = names.is_retry_topic(topic) or names.is_dlq_topic(topic)
            queues = count if is_single else max(count, least)
            _log.warning("the topic %s is in the store but not in topics.json: restored", topic)
            self._put(
                TopicConfig(
                    topic_name=topic,
                    read_queue_nums=queues,
                    write_queue_nums=queues,
                    perm=_READ_WRITE,
                )
            )

    def create_on_send(
        self, topic: str, default_topic: str, queue_count: int, remote: str, sys_flag: int = 0
    ) -> TopicConfig | None:
        """The topic, created as a copy of the default topic if that may be inherited from.

        None when it does not exist and may not be created.
        """
        existing = self.table.get(topic)
        if existing is not None:
            return existing
        _log.warning("the topic %s not exist, producer: %s", topic, remote)
        pattern = self.table.get(default_topic)
        if pattern is None:
            _log.warning(
                "Create new topic failed, because the default topic[%s] not exist. producer:[%s]",
                default_topic,
                remote,
            )
            return None
        perm = pattern.perm
        if (
            default_topic == names.AUTO_CREATE_TOPIC
            and not self._settings.current.auto_create_topic
        ):
            perm &= ~_INHERIT
        if not perm & _INHERIT:
            _log.warning(
                "Create new topic failed, because the default topic[%s] has no perm [%d] "
                "producer:[%s]",
                default_topic,
                perm,
                remote,
            )
            return None
        self.check_room([topic])
        queues = max(0, min(queue_count, pattern.write_queue_nums))
        created = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm & ~_INHERIT,
            topic_sys_flag=sys_flag,
            topic_filter_type=pattern.topic_filter_type,
        )
        _log.info(
            "Create new topic by default topic:[%s] config:[%s] producer:[%s]",
            default_topic,
            topic_text(created),
            remote,
        )
        self.unsaved.add(topic)
        self._put(created)
        return created

    def check_room(self, topics: Iterable[str]) -> None:
        """Raise SystemFailedError if these topics would be more than ``maxTopics`` allows.

        Those for retries and dead letters count, but are always created.
        """
        _check_room(self.table, topics, self._settings.current.topic_limit, "maxTopics", "topics")

    def ensure_topic(
        self, topic: str, queue_count: int, perm: int, sys_flag: int = 0, *, order: bool = False
    ) -> TopicConfig:
        """A retry, dead-letter or transaction topic; one that exists keeps all but its order."""
        existing = self.table.get(topic)
        if existing is not None:
            if existing.order != order:
                existing = msgspec.structs.replace(existing, order=order)
                self._put(existing)
            return existing
        queues = max(0, min(queue_count, _MAX_QUEUES))
        created = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            topic_sys_flag=sys_flag,
            order=order,
        )
        _log.info("create new topic %s", topic_text(created))
        self._put(created)
        return created

    def put(self, config: TopicConfig) -> None:
        """Create or replace a topic as an administrator wants it."""
        self.put_all([config])

    def put_all(self, configs: Iterable[TopicConfig]) -> None:
        """Create or replace several topics; the listeners are told once."""
        configs = list(configs)
        self.check_room(config.topic_name for config in configs)
        changed = []
        for config in configs:
            before = self.table.get(config.topic_name)
            if before is None:
                _log.info("create new topic [%s]", topic_text(config))
            else:
                _log.info(
                    "update topic config, old:[%s] new:[%s]",
                    topic_text(before),
                    topic_text(config),
                )
            self.table.put(config.topic_name, config)
            changed.append(config.topic_name)
        if changed:
            self._tell(changed)

    def delete(self, topic: str) -> TopicConfig | None:
        """Forget a topic; its messages are the store's business."""
        removed = self.table.remove(topic)
        if removed is None:
            _log.warning("delete topic config failed, topic: %s not exists", topic)
            return None
        _log.info("delete topic config OK, topic: %s", topic_text(removed))
        self._tell([topic])
        return removed

    def copy(self, configs: Mapping[str, TopicConfig], data_version: DataVersion) -> None:
        """Become what the master has, in one step; system topics that it lacks stay."""
        before = self.table.configs
        wanted = {
            **{name: before[name] for name in before if name in self._own_system_topics},
            **configs,
        }
        changed = [name for name, config in wanted.items() if before.get(name) != config]
        changed += [name for name in before if name not in wanted]
        self.table.copy(wanted, data_version)
        if changed:
            _log.info("copied %d changed topics from the master", len(changed))
        self._tell(changed)

    def set_ordered(self, topics: Iterable[str]) -> None:
        """Mark topics as ordered, as the name servers' order configuration tells."""
        for topic in topics:
            config = self.table.get(topic)
            if config is not None and not config.order:
                _log.info("update order topic config, topic=%s, order=true", topic)
                self._put(msgspec.structs.replace(config, order=True))

    def _put(self, config: TopicConfig) -> None:
        self.table.put(config.topic_name, config)
        self._tell([config.topic_name])

    def _tell(self, topics: list[str]) -> None:
        for listener in self._listeners:
            listener(topics)


class Groups:
    """``subscriptionGroup.json`` in force: the settings of consumer groups."""

    def __init__(self, table: SubscriptionGroupTable, settings: Settings) -> None:
        self.table = table
        self._settings = settings
        self._listeners: list[Callable[[list[str]], None]] = []

    def __contains__(self, group: str) -> bool:
        return group in self.table

    def __len__(self) -> int:
        return len(self.table)

    @property
    def configs(self) -> Mapping[str, SubscriptionGroupConfig]:
        return self.table.configs

    @property
    def data_version(self) -> DataVersion:
        return self.table.data_version

    def add_listener(self, listener: Callable[[list[str]], None]) -> None:
        """Call ``listener`` with the names of groups that were created, changed or deleted."""
        self._listeners.append(listener)

    def add_system_groups(self) -> None:
        """Add what every broker has; a group that was loaded from the file stays as it is."""
        for group in _SYSTEM_GROUPS:
            self.table.put_missing(group, SubscriptionGroupConfig(group_name=group))

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """A group that exists."""
        return self.table.get(group)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group, created on first use if that is allowed and its name is good."""
        existing = self.table.get(group)
        if existing is not None:
            return existing
        config = self._settings.current
        is_creatable = config.auto_create_group or (
            config.create_system_group and names.is_system_group(group)
        )
        if not is_creatable or names.group_problem(group) is not None:
            return None
        created = SubscriptionGroupConfig(group_name=group)
        if self._settings.current.is_slave:
            return created  # the table is the master's; it creates the group, too
        self.check_room([group])
        _log.info("auto create a subscription group, %s", created)
        self.table.put(group, created)
        self._tell([group])
        return created

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a group as an administrator wants it."""
        self.put_all([config])

    def put_all(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        """Create or replace several groups; the listeners are told once."""
        configs = list(configs)
        self.check_room(config.group_name for config in configs)
        changed = []
        for config in configs:
            before = self.table.get(config.group_name)
            if before is None:
                _log.info("create new subscription group, %s", config)
            else:
                _log.info("update subscription group config, old: %s new: %s", before, config)
            self.table.put(config.group_name, config)
            changed.append(config.group_name)
        if changed:
            self._tell(changed)

    def delete(self, group: str) -> SubscriptionGroupConfig | None:
        removed = self.table.remove(group)
        if removed is None:
            _log.warning(
                "delete subscription group failed, subscription groupName: %s not exist", group
            )
            return None
        _log.info("delete subscription group OK, subscription group:%s", removed)
        self._tell([group])
        return removed

    def copy(
        self,
        configs: Mapping[str, SubscriptionGroupConfig],
        forbidden: Mapping[str, Mapping[str, int]],
        data_version: DataVersion,
    ) -> None:
        """Become what the master has, in one step; system groups that it lacks stay."""
        before = self.table.configs
        wanted = {
            **{name: before[name] for name in _SYSTEM_GROUPS if name in before},
            **configs,
        }
        changed = [name for name, config in wanted.items() if before.get(name) != config]
        changed += [name for name in before if name not in wanted]
        self.table.copy(wanted, forbidden, data_version)
        self._tell(changed)

    def check_room(self, groups: Iterable[str]) -> None:
        """Raise SystemFailedError if these groups would be more than the limit allows."""
        limit = self._settings.current.group_limit
        _check_room(self.table, groups, limit, "maxSubscriptionGroups", "subscription groups")

    def disable_consuming(self, group: str) -> None:
        """Stop a group that reads too slowly, until an administrator enables it again."""
        config = self.table.get(group)
        if config is not None and config.consume_enable:
            self.table.put(group, msgspec.structs.replace(config, consume_enable=False))
            self._tell([group])

    def forbid(self, group: str, topic: str, bits: int) -> None:
        """Set what a group may not do with a topic."""
        self.table.set_forbidden(group, topic, bits)
        self._tell([group])

    def _tell(self, groups: list[str]) -> None:
        for listener in self._listeners:
            listener(groups)


def _check_room(
    table: TopicTable | SubscriptionGroupTable,
    names_: Iterable[str],
    limit: int,
    setting: str,
    what: str,
) -> None:
    created = {name for name in names_ if name not in table}
    if created and len(table) + len(created) > limit:
        text = f"{min(created)[:255]} was not created: the broker has {len(table)} {what}, and"
        text = f"{text} {setting}={limit}"
        _log.warning("%s", text)
        raise SystemFailedError(text)


def topic_text(config: TopicConfig) -> str:
    """A topic as RocketMQ's log shows it."""
    perm = "".join(
        letter if config.perm & bit else "-"
        for letter, bit in (("R", Permission.READ), ("W", Permission.WRITE), ("X", _INHERIT))
    )
    attributes = ", ".join(f"{key}={value}" for key, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={str(config.order).lower()}, attributes={{{attributes}}}]"
    )


def _topic(name: str, queues: int, perm: int = _READ_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def _system_topics(config: BrokerConfig) -> list[TopicConfig]:
    inherited = _INHERIT | _READ_WRITE
    topics = [
        _topic(names.SELF_TEST_TOPIC, 1),
        _topic(names.BENCHMARK_TOPIC, _BENCHMARK_QUEUES),
        # 16 queues are what a topic has in Java when nobody says otherwise.
        _topic(config.cluster_name, 16, inherited if config.cluster_topic_enable else _INHERIT),
        _topic(config.broker_name, 1, inherited if config.broker_topic_enable else _INHERIT),
        _topic(names.OFFSET_MOVED_TOPIC, 1),
        _topic(names.SCHEDULE_TOPIC, _DELAY_QUEUES),
        _topic(names.reply_topic(config.cluster_name), 1),
        _topic(names.revive_topic(config.cluster_name), config.revive_queues),
        _topic(names.SYNC_BROKER_MEMBER_PREFIX + config.broker_name, 1, _INHERIT),
        _topic(names.TRANS_HALF_TOPIC, 1),
        _topic(names.TRANS_OP_HALF_TOPIC, 1),
        _topic(names.ROCKSDB_TRANS_HALF_TOPIC, 1),
        _topic(names.ROCKSDB_TRANS_OP_HALF_TOPIC, 1),
    ]
    if config.auto_create_topic:
        topics.append(_topic(names.AUTO_CREATE_TOPIC, config.default_topic_queues, inherited))
    if config.trace_topic_enable:
        topics.append(_topic(config.trace_topic, 1))
    if config.timer_wheel_enable:
        topics.append(_topic(names.TIMER_TOPIC, 1))
    return topics
