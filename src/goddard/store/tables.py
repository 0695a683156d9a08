"""What a broker knows besides its messages: topics, groups, consumer progress, delays, filters.

Each table is one JSON file under ``config/`` in RocketMQ's form, so that 4.9 and 5.x read what we
write and we read what they wrote. Fields that we do not know (of entries and of the document) are
kept and written back; fields that Java only derives (``groupTopicMap``, ``dead``) are dropped.

A table belongs to one thread. ``snapshot`` belongs there too; calling its result and
``JsonFile.replace`` may run anywhere, which is how a broker keeps large tables out of its loop.
``save`` does it all. The entries of topics and groups stay encoded, so that a change costs the
encoding of one entry, however many there are.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

import msgspec

from goddard.clock import Clock, SystemClock
from goddard.environment.files import Files
from goddard.errors import StoreError
from goddard.protocol.bodies import DataVersion, TopicConfig
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.store.jsonfile import DocumentError, JsonFile, Origin, encode_document

TOPIC_GROUP_SEPARATOR: Final = "@"
# Brokers announce progress (a higher data version) once per so many changes, as Java's do.
OFFSET_COMMITS_PER_VERSION: Final = 500
DELAY_COMMITS_PER_VERSION: Final = 200
FILTER_LIFE_AFTER_DEATH_MS: Final = 24 * 3600 * 1000

_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1


def pair_key(topic: str, group: str) -> str:
    """The name of a group's progress in a topic, in consumerOffset.json."""
    return f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"


class _Table:
    """Loading, saving and versions, the same for every table."""

    file_name: ClassVar[str]
    # Fields of the document that this table writes itself; the rest is kept as it was read.
    own_fields: ClassVar[frozenset[str]]

    def __init__(
        self, config_directory: Path, clock: Clock | None = None, files: Files | None = None
    ) -> None:
        self.file = JsonFile(config_directory / self.file_name, files)
        self.data_version = DataVersion()
        self.is_changed = False
        self._clock = clock or SystemClock()
        self._unknown_fields: dict[str, Any] = {}

    def load(self) -> Origin:
        """Read the file, or its ``.bak`` when it is missing or broken; defaults without either."""
        document, origin = self.file.load()
        try:
            self._take(document)
        except (msgspec.ValidationError, StoreError) as error:
            backup = self.file.load_backup(str(error)) if origin is Origin.FILE else None
            if backup is None:
                raise DocumentError(f"{self.file.path} cannot be read: {error}") from error
            origin = Origin.BACKUP
            try:
                self._take(backup)
            except (msgspec.ValidationError, StoreError) as backup_error:
                raise DocumentError(
                    f"{self.file.path} cannot be read: {error}; "
                    f"{self.file.backup_path.name}: {backup_error}"
                ) from backup_error
        self.is_changed = origin is Origin.BACKUP
        return origin

    def encode(self) -> bytes:
        """The table's file as it should be now."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        """A function that encodes the table as it is now; it may be called in any thread."""
        document = {**self._unknown_fields, **self._document()}
        return lambda: encode_document(document)

    def save(self) -> None:
        """Write the file; durable when this returns."""
        data = self.encode()
        self.is_changed = False
        try:
            self.file.replace(data)
        except StoreError:
            self.is_changed = True
            raise

    def next_version(self, state_version: int = 0) -> DataVersion:
        """Tell the name servers and slaves that the table changed."""
        self.data_version = DataVersion(
            counter=self.data_version.counter + 1,
            state_version=state_version,
            timestamp=self._clock.now_ms(),
        )
        self.is_changed = True
        return self.data_version

    def _take(self, document: dict[str, Any]) -> None:
        version = document.get("dataVersion") or {}
        self.data_version = msgspec.convert(version, DataVersion, strict=False)
        self._unknown_fields = {
            name: value for name, value in document.items() if name not in self.own_fields
        }

    def _document(self) -> dict[str, Any]:
        return {"dataVersion": _fields(self.data_version)}


Config = TypeVar("Config", TopicConfig, SubscriptionGroupConfig)


class _ConfigTable(_Table, Generic[Config]):
    """Named configurations. What a file held of a name beyond the known fields stays with it."""

    table_field: ClassVar[str]
    name_field: ClassVar[str]
    config_type: type[Config]

    def __init__(
        self, config_directory: Path, clock: Clock | None = None, files: Files | None = None
    ) -> None:
        super().__init__(config_directory, clock, files)
        self._configs: dict[str, Config] = {}
        self._raw: dict[str, dict[str, Any]] = {}
        # Names and entries as the file has them, without those that changed since the last
        # snapshot; the names are in order.
        self._encoded: dict[str, bytes] = {}
        self._names: list[str] = []
        self._changed: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._configs

    def __iter__(self) -> Iterator[str]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)

    def get(self, name: str) -> Config | None:
        return self._configs.get(name)

    @property
    def configs(self) -> Mapping[str, Config]:
        return self._configs

    def put(self, name: str, config: Config, state_version: int = 0) -> None:
        """Add or replace; the data version moves."""
        self._configs[name] = config
        self._changed[name] = None
        self.next_version(state_version)

    def put_missing(self, name: str, config: Config) -> bool:
        """Add what every broker has at its start; what was loaded has priority. No new version."""
        if name in self._configs:
            return False
        self._configs[name] = config
        self._changed[name] = None
        self.is_changed = True
        return True

    def remove(self, name: str, state_version: int = 0) -> Config | None:
        config = self._configs.pop(name, None)
        self._raw.pop(name, None)
        if config is not None:
            self._changed[name] = None
            self.next_version(state_version)
        return config

    def _copy(self, configs: Mapping[str, Config], data_version: DataVersion) -> None:
        """Become what another broker has, in its version."""
        before, self._configs = self._configs, dict(configs)
        self._changed.update(dict.fromkeys(before))
        self._changed.update(dict.fromkeys(configs))
        self._raw = {name: raw for name, raw in self._raw.items() if name in configs}
        self.data_version = data_version
        self.is_changed = True

    def _take(self, document: dict[str, Any]) -> None:
        raw = _mapping(document.get(self.table_field), self.table_field)
        configs: dict[str, Config] = {}
        for name, fields in raw.items():
            fields.setdefault(self.name_field, name)
            configs[name] = msgspec.convert(fields, self.config_type, strict=False)
        super()._take(document)
        self._raw, self._configs = raw, configs
        self._encoded.clear()
        self._names.clear()
        self._changed = dict.fromkeys(configs)

    def snapshot(self) -> Callable[[], bytes]:
        document = {**self._unknown_fields, **self._document(), self.table_field: {}}
        entries = self._entries()
        marker = f'\n\t"{self.table_field}": {{}}'.encode()

        def encode() -> bytes:
            data = encode_document(document)
            if not entries:
                return data
            # Other lines begin with more tabs, and no text contains a line break.
            before, _, after = data.partition(marker)
            table = b"".join((marker[:-1], b",".join(entries), b"\n\t}"))
            return b"".join((before, table, after))

        return encode

    def _entries(self) -> list[bytes]:
        """All entries as the file has them, in the order of their names."""
        changed, self._changed = self._changed, {}
        kept = {
            name: {**self._raw.get(name, {}), **_fields(config)}
            for name in changed
            if (config := self._configs.get(name)) is not None
        }
        if len(kept) < len(changed):
            for name in changed.keys() - kept.keys():
                self._encoded.pop(name, None)
            self._names = list(self._encoded)
        self._names += kept.keys() - self._encoded.keys()
        if kept:
            # Without the braces around them; each entry begins a line with one tab.
            text = encode_document(kept)[1:-2]
            for name, entry in zip(sorted(kept), text.split(b',\n\t"'), strict=True):
                line = entry.removeprefix(b'\n\t"').replace(b"\n", b"\n\t")
                self._encoded[name] = b'\n\t\t"' + line
        self._names.sort()  # fast: nearly all are in order
        return [self._encoded[name] for name in self._names]


class TopicTable(_ConfigTable[TopicConfig]):
    """``topics.json``."""

    file_name = "topics.json"
    table_field = "topicConfigTable"
    name_field = "topicName"
    own_fields = frozenset({"dataVersion", "topicConfigTable"})
    config_type = TopicConfig

    def copy(self, configs: Mapping[str, TopicConfig], data_version: DataVersion) -> None:
        """Become what another broker has, in its version."""
        self._copy(configs, data_version)


class SubscriptionGroupTable(_ConfigTable[SubscriptionGroupConfig]):
    """``subscriptionGroup.json``, and which topics a group may not read (permission bits)."""

    file_name = "subscriptionGroup.json"
    table_field = "subscriptionGroupTable"
    name_field = "groupName"
    own_fields = frozenset({"dataVersion", "subscriptionGroupTable", "forbiddenTable"})
    config_type = SubscriptionGroupConfig

    def __init__(
        self, config_directory: Path, clock: Clock | None = None, files: Files | None = None
    ) -> None:
        super().__init__(config_directory, clock, files)
        self._forbidden: dict[str, dict[str, int]] = {}

    @property
    def all_forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """Group, then topic: the bits."""
        return self._forbidden

    def copy(
        self,
        configs: Mapping[str, SubscriptionGroupConfig],
        forbidden: Mapping[str, Mapping[str, int]],
        data_version: DataVersion,
    ) -> None:
        """Become what another broker has, in its version."""
        self._copy(configs, data_version)
        self._forbidden = {group: dict(topics) for group, topics in forbidden.items()}

    def forbidden(self, group: str, topic: str) -> int:
        return self._forbidden.get(group, {}).get(topic, 0)

    def set_forbidden(self, group: str, topic: str, bits: int) -> None:
        self._forbidden.setdefault(group, {})[topic] = bits
        self.next_version()

    def remove(self, name: str, state_version: int = 0) -> SubscriptionGroupConfig | None:
        self._forbidden.pop(name, None)
        return super().remove(name, state_version)

    def _take(self, document: dict[str, Any]) -> None:
        raw = _mapping(document.get("forbiddenTable"), "forbiddenTable")
        forbidden = {
            group: {topic: _integer(bits, _MAX_INT32) for topic, bits in topics.items()}
            for group, topics in raw.items()
        }
        super()._take(document)
        self._forbidden = forbidden

    def _document(self) -> dict[str, Any]:
        forbidden = {group: dict(topics) for group, topics in self._forbidden.items()}
        return {**super()._document(), "forbiddenTable": forbidden}


class ConsumerOffsetTable(_Table):
    """``consumerOffset.json``: the next queue offset of each group, per topic and queue."""

    file_name = "consumerOffset.json"
    own_fields = frozenset({"dataVersion", "offsetTable", "groupTopicMap"})

    def __init__(
        self, config_directory: Path, clock: Clock | None = None, files: Files | None = None
    ) -> None:
        super().__init__(config_directory, clock, files)
        self._offsets: dict[str, dict[int, int]] = {}
        self._commits = 0
        self.count = 0  # of queues with an offset, over all groups

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The group's next offset; -1 when it has none."""
        offsets = self._offsets.get(pair_key(topic, group))
        return -1 if offsets is None else offsets.get(queue_id, -1)

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> int:
        """Set the group's next offset, which may go back; answers the one before, or -1."""
        offsets = self._offsets.setdefault(pair_key(topic, group), {})
        before = offsets.get(queue_id, -1)
        if before < 0 and queue_id not in offsets:
            self.count += 1
        offsets[queue_id] = queue_offset
        self.is_changed = True
        self._commits += 1
        if self._commits % OFFSET_COMMITS_PER_VERSION == 0:
            self.next_version()
        return before

    def offsets(self, group: str, topic: str) -> Mapping[int, int]:
        """Queue id to offset."""
        return self._offsets.get(pair_key(topic, group), {})

    def items(self) -> Iterator[tuple[str, str, Mapping[int, int]]]:
        """Every (group, topic, queue id to offset)."""
        for key, offsets in self._offsets.items():
            topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
            yield group, topic, offsets

    def copy(
        self, by_pair: Mapping[str, Mapping[int, int]], data_version: DataVersion | None
    ) -> None:
        """Become what another broker has, in its version (4.9 sends none)."""
        offsets = {pair: dict(of_queue) for pair, of_queue in by_pair.items()}
        if offsets != self._offsets:
            self._offsets = offsets
            self.count = sum(map(len, offsets.values()))
            self.is_changed = True
        if data_version is not None:
            self.data_version = data_version

    def raise_to(self, by_pair: Mapping[str, Mapping[int, int]], data_version: DataVersion) -> None:
        """Have at least these offsets, in this version."""
        merged = {pair: dict(of_queue) for pair, of_queue in self._offsets.items()}
        for pair, of_queue in by_pair.items():
            own = merged.setdefault(pair, {})
            for queue_id, offset in of_queue.items():
                own[queue_id] = max(offset, own.get(queue_id, -1))
        self.copy(merged, data_version)

    def by_pair(self) -> dict[str, Mapping[int, int]]:
        """Queue id to offset by "topic@group"; the pairs are those of now, the offsets go on."""
        return dict(self._offsets)

    def topics_of(self, group: str) -> list[str]:
        return [topic for other, topic, _ in self.items() if other == group]

    def groups_of(self, topic: str) -> list[str]:
        return [group for group, other, _ in self.items() if other == topic]

    def remove(self, *, group: str | None = None, topic: str | None = None) -> int:
        """Forget a group, a topic, or a group's progress in a topic; answers how many pairs."""
        if group is None and topic is None:
            raise ValueError("name a group or a topic")
        doomed = [
            pair_key(its_topic, its_group)
            for its_group, its_topic, _ in self.items()
            if group in (None, its_group) and topic in (None, its_topic)
        ]
        for key in doomed:
            self.count -= len(self._offsets.pop(key))
        self.is_changed = self.is_changed or bool(doomed)
        return len(doomed)

    def clone(self, source_group: str, target_group: str, topic: str) -> None:
        """Give one group the progress of another."""
        offsets = self.offsets(source_group, topic)
        if offsets:
            self.count += len(offsets) - len(self.offsets(target_group, topic))
            self._offsets[pair_key(topic, target_group)] = dict(offsets)
            self.is_changed = True

    def _take(self, document: dict[str, Any]) -> None:
        table = _mapping(document.get("offsetTable"), "offsetTable")
        offsets = {key: _offsets(of_queue) for key, of_queue in table.items()}
        super()._take(document)
        self._offsets = offsets
        self.count = sum(map(len, offsets.values()))

    def _document(self) -> dict[str, Any]:
        table = {key: _text_keys(offsets) for key, offsets in self._offsets.items()}
        return {**super()._document(), "offsetTable": table}


class DelayOffsetTable(_Table):
    """``delayOffset.json``: how far each delay level (1, 2, ...) has been delivered."""

    file_name = "delayOffset.json"
    own_fields = frozenset({"dataVersion", "offsetTable"})

    def __init__(
        self, config_directory: Path, clock: Clock | None = None, files: Files | None = None
    ) -> None:
        super().__init__(config_directory, clock, files)
        self._offsets: dict[int, int] = {}
        self._commits = 0

    @property
    def offsets(self) -> Mapping[int, int]:
        """Delay level to the next queue offset; levels that never held a message are absent."""
        return self._offsets

    def copy(self, offsets: Mapping[int, int], data_version: DataVersion | None) -> None:
        """Become what another broker has, in its version (4.9 sends none)."""
        if self._offsets != offsets:
            self._offsets = dict(offsets)
            self.is_changed = True
        if data_version is not None:
            self.data_version = data_version

    def raise_to(self, offsets: Mapping[int, int], data_version: DataVersion) -> None:
        """Have at least these offsets, in this version."""
        merged = dict(self._offsets)
        for level, offset in offsets.items():
            merged[level] = max(offset, merged.get(level, 0))
        self.copy(merged, data_version)

    def commit(self, level: int, queue_offset: int) -> None:
        self._offsets[level] = queue_offset
        self.is_changed = True
        self._commits += 1
        if self._commits % DELAY_COMMITS_PER_VERSION == 0:
            self.next_version()

    def _take(self, document: dict[str, Any]) -> None:
        offsets = _offsets(document.get("offsetTable") or {})
        super()._take(document)
        self._offsets = offsets

    def _document(self) -> dict[str, Any]:
        return {**super()._document(), "offsetTable": _text_keys(self._offsets)}


class BloomFilterData(msgspec.Struct, rename="camel", frozen=True):
    """Where a group's filter has its bits in the bitmap of a message."""

    bit_num: int = 0
    bit_pos: list[int] = []


class ConsumerFilter(msgspec.Struct, rename="camel", frozen=True, omit_defaults=False):
    """A group's SQL filter on a topic, kept a day beyond its last consumer."""

    topic: str
    consumer_group: str
    expression: str
    expression_type: str = "SQL92"
    born_time: int = 0
    dead_time: int = 0
    client_version: int = 0
    bloom_filter_data: BloomFilterData | None = None

    @property
    def is_dead(self) -> bool:
        return self.dead_time >= self.born_time

    def revive(self) -> Self:
        return msgspec.structs.replace(self, dead_time=0)

    def die(self, now_ms: int) -> Self:
        return msgspec.structs.replace(self, dead_time=now_ms)


class ConsumerFilterTable(_Table):
    """``consumerFilter.json``. Java gives it no data version, so none is written."""

    file_name = "consumerFilter.json"
    own_fields = frozenset({"dataVersion", "filterDataByTopic"})

    def __init__(
        self, config_directory: Path, clock: Clock | None = None, files: Files | None = None
    ) -> None:
        super().__init__(config_directory, clock, files)
        self._filters: dict[str, dict[str, ConsumerFilter]] = {}

    def __iter__(self) -> Iterator[ConsumerFilter]:
        for filters in self._filters.values():
            yield from filters.values()

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        return self._filters.get(topic, {}).get(group)

    def put(self, consumer_filter: ConsumerFilter) -> None:
        of_topic = self._filters.setdefault(consumer_filter.topic, {})
        of_topic[consumer_filter.consumer_group] = consumer_filter
        self.is_changed = True

    def purge(self, now_ms: int) -> int:
        """Forget filters that have been dead for a day; answers how many."""
        before = sum(map(len, self._filters.values()))
        kept = {
            topic: {
                group: each
                for group, each in filters.items()
                if not each.is_dead or now_ms - each.dead_time <= FILTER_LIFE_AFTER_DEATH_MS
            }
            for topic, filters in self._filters.items()
        }
        self._filters = {topic: filters for topic, filters in kept.items() if filters}
        purged = before - sum(map(len, self._filters.values()))
        self.is_changed = self.is_changed or purged > 0
        return purged

    def _take(self, document: dict[str, Any]) -> None:
        filters: dict[str, dict[str, ConsumerFilter]] = {}
        table = _mapping(document.get("filterDataByTopic"), "filterDataByTopic")
        for topic, of_topic in table.items():
            groups = _mapping(of_topic.get("groupFilterData"), "groupFilterData")
            filters[topic] = {
                group: msgspec.convert(fields, ConsumerFilter, strict=False)
                for group, fields in groups.items()
            }
        super()._take(document)
        self._filters = filters

    def _document(self) -> dict[str, Any]:
        table = {
            topic: {
                "topic": topic,
                "groupFilterData": {group: _fields(each) for group, each in filters.items()},
            }
            for topic, filters in self._filters.items()
        }
        return {"filterDataByTopic": table}


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    """A struct as Java writes it: null fields left out."""
    fields: dict[str, Any] = msgspec.to_builtins(value, str_keys=True)
    return {name: field for name, field in fields.items() if field is not None}


def _text_keys(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(key): offsets[key] for key in sorted(offsets)}


def _mapping(value: object, name: str) -> dict[str, dict[str, Any]]:
    """A JSON object of JSON objects, with text keys; null counts as empty."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise StoreError(f"{name} is not a JSON object")
    table: dict[str, dict[str, Any]] = {}
    for key, entry in value.items():
        if not isinstance(entry, dict):
            raise StoreError(f"{key} in {name} is not a JSON object")
        table[str(key)] = {str(inner): field for inner, field in entry.items()}
    return table


def _offsets(value: object) -> dict[int, int]:
    if not isinstance(value, dict):
        raise StoreError("a table of offsets is not a JSON object")
    return {
        _integer(key, _MAX_INT32): _integer(offset, _MAX_INT64) for key, offset in value.items()
    }


def _integer(value: object, most: int) -> int:
    """A number of the document, also when written as text (keys, quoted numbers)."""
    if isinstance(value, str) and len(value) <= 20:
        try:
            value = int(value)
        except ValueError:
            raise StoreError(f"{value!r} is not a number") from None
    if not isinstance(value, int) or isinstance(value, bool) or not -most - 1 <= value <= most:
        raise StoreError(f"{str(value)[:80]!r} is not a number from {-most - 1} to {most}")
    return value
