"""Metadata tables: they read Java's JSON, write JSON that Java reads, and replace files safely."""

import errno
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.errors import ProtocolError, StoreError
from goddard.protocol import fastjson
from goddard.protocol.bodies import DataVersion, TopicConfig
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.store.jsonfile import DocumentError, JsonFile, Origin, decode_document, encode_document
from goddard.store.tables import (
    DELAY_COMMITS_PER_VERSION,
    OFFSET_COMMITS_PER_VERSION,
    BloomFilterData,
    ConsumerFilter,
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicTable,
)
from tests.support.clock import ManualClock
from tests.support.faulty_files import FaultyFiles

JAVA_5_OFFSETS = b"""{
\t"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1794732933492},
\t"groupTopicMap":{"GroupA":["TopicA"]},
\t"offsetTable":{
\t\t"TopicA@GroupA":{0:700,1:80},
\t\t"%RETRY%GroupA@GroupA":{
\t\t\t0:0
\t\t}
\t}
}"""
JAVA_4_OFFSETS = b'{\n\t"offsetTable":{\n\t\t"TopicA@GroupA":{0:700,1:80\n\t\t}\n\t}\n}'
JAVA_5_TOPICS = b"""{"dataVersion":{"counter":9,"stateVersion":2,"timestamp":17},
"topicConfigTable":{"T":{"attributes":{"message.type":"FIFO"},"order":true,"perm":6,"readQueueNums":8,
"topicFilterType":"MULTI_TAG","topicName":"T","topicSysFlag":1,"writeQueueNums":7,"future":[1]}},
"topLevelFuture":{"a":1}}"""
JAVA_4_TOPICS = b"""{"dataVersion":{"counter":1,"timestamp":5},"topicConfigTable":{"T":{
"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,
"writeQueueNums":4}}}"""


def document(path: Path) -> dict[str, object]:
    value = json.loads(path.read_bytes())
    assert isinstance(value, dict)
    return value


# --- Offsets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [JAVA_5_OFFSETS, JAVA_4_OFFSETS], ids=["5.4.0", "4.9.4"])
def test_offsets_of_java_are_read(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "consumerOffset.json").write_bytes(text)
    table = ConsumerOffsetTable(tmp_path)
    assert table.load() is Origin.FILE
    assert table.query("GroupA", "TopicA", 0) == 700
    assert table.query("GroupA", "TopicA", 1) == 80
    assert table.query("GroupA", "TopicA", 2) == -1
    assert table.query("GroupB", "TopicA", 0) == -1
    assert not table.is_changed


def test_offsets_survive_saving_and_loading(tmp_path: Path) -> None:
    table = ConsumerOffsetTable(tmp_path, ManualClock())
    assert table.load() is Origin.ABSENT
    assert table.commit("G", "T", 11, 5) == -1
    assert table.commit("G", "T", 2, 6) == -1
    assert table.commit("G", "T", 2, 4) == 6
    table.save()
    assert not table.is_changed
    other = ConsumerOffsetTable(tmp_path)
    assert other.load() is Origin.FILE
    assert other.offsets("G", "T") == {2: 4, 11: 5}
    text = (tmp_path / "consumerOffset.json").read_text()
    assert text.startswith('{\n\t"dataVersion"')
    assert '"T@G": {\n\t\t\t"11": 5,' in text


def test_the_version_of_offsets_changes_once_in_many_commits(tmp_path: Path) -> None:
    clock = ManualClock()
    table = ConsumerOffsetTable(tmp_path, clock)
    for number in range(OFFSET_COMMITS_PER_VERSION - 1):
        table.commit("G", "T", 0, number)
    assert table.data_version == DataVersion()
    clock.advance(7)
    table.commit("G", "T", 0, 1)
    assert table.data_version == DataVersion(counter=1, timestamp=clock.now_ms())


def test_offsets_of_topics_and_groups_can_be_listed_removed_and_cloned(tmp_path: Path) -> None:
    table = ConsumerOffsetTable(tmp_path)
    for group in ("G1", "G2"):
        for topic in ("T1", "T2"):
            table.commit(group, topic, 0, 9)
    assert table.topics_of("G1") == ["T1", "T2"]
    assert table.groups_of("T2") == ["G1", "G2"]
    assert table.remove(group="G1", topic="T1") == 1
    assert table.remove(topic="T2") == 2
    assert [(group, topic) for group, topic, _ in table.items()] == [("G2", "T1")]
    table.clone("G2", "G3", "T1")
    table.commit("G2", "T1", 0, 10)
    assert table.query("G3", "T1", 0) == 9
    assert table.remove(group="G2") == 1
    with pytest.raises(ValueError, match="name a group"):
        table.remove()


def test_delay_offsets(tmp_path: Path) -> None:
    (tmp_path / "delayOffset.json").write_bytes(b'{\n\t"offsetTable":{1:20,2:12\n\t}\n}')
    table = DelayOffsetTable(tmp_path, ManualClock())
    table.load()
    assert table.offsets == {1: 20, 2: 12}
    for number in range(DELAY_COMMITS_PER_VERSION):
        table.commit(18, number)
    assert table.data_version.counter == 1
    table.save()
    other = DelayOffsetTable(tmp_path)
    other.load()
    assert other.offsets == {1: 20, 2: 12, 18: DELAY_COMMITS_PER_VERSION - 1}


# --- Topics and groups ----------------------------------------------------------------------------


def test_topics_keep_unknown_fields(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_bytes(JAVA_5_TOPICS)
    clock = ManualClock()
    table = TopicTable(tmp_path, clock)
    table.load()
    config = table.get("T")
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums) == (8, 7)
    assert config.attributes == {"message.type": "FIFO"}
    table.put("T", TopicConfig(topic_name="T", read_queue_nums=9))
    assert table.data_version == DataVersion(counter=10, timestamp=clock.now_ms())
    table.save()
    saved = document(tmp_path / "topics.json")
    assert saved["topLevelFuture"] == {"a": 1}
    topics = saved["topicConfigTable"]
    assert isinstance(topics, dict)
    assert topics["T"]["future"] == [1]
    assert topics["T"]["readQueueNums"] == 9
    assert topics["T"]["order"] is False
    table.remove("T")
    table.put("T", TopicConfig(topic_name="T"))
    assert b"future" not in table.encode().replace(b"topLevelFuture", b"")


def test_topics_of_4_9_have_no_attributes_and_no_state_version(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_bytes(JAVA_4_TOPICS)
    table = TopicTable(tmp_path)
    table.load()
    config = table.get("T")
    assert config is not None
    assert config.attributes == {}
    assert table.data_version == DataVersion(counter=1, timestamp=5)


def test_system_topics_do_not_replace_loaded_ones(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_bytes(JAVA_4_TOPICS)
    table = TopicTable(tmp_path)
    table.load()
    assert not table.put_missing("T", TopicConfig(topic_name="T", perm=0))
    assert table.put_missing("TBW102", TopicConfig(topic_name="TBW102", perm=7))
    assert sorted(table) == ["T", "TBW102"]
    assert table.data_version.counter == 1
    assert table.is_changed


def test_groups_and_their_forbidden_topics(tmp_path: Path) -> None:
    table = SubscriptionGroupTable(tmp_path)
    table.put("G", SubscriptionGroupConfig(group_name="G", retry_max_times=3))
    table.set_forbidden("G", "T", 4)
    table.save()
    other = SubscriptionGroupTable(tmp_path)
    other.load()
    config = other.get("G")
    assert config is not None
    assert config.retry_max_times == 3
    assert (other.forbidden("G", "T"), other.forbidden("G", "U")) == (4, 0)
    other.remove("G")
    assert other.forbidden("G", "T") == 0
    assert "G" not in other


def test_filters_are_deleted_a_day_after_their_last_consumer(tmp_path: Path) -> None:
    table = ConsumerFilterTable(tmp_path)
    alive = ConsumerFilter("T", "G1", "a > 5", born_time=100, client_version=7)
    bloom = BloomFilterData(112, [18, 79, 65])
    table.put(alive)
    table.put(
        ConsumerFilter("T", "G2", "b = 'x'", born_time=100, bloom_filter_data=bloom).die(1000)
    )
    table.save()
    other = ConsumerFilterTable(tmp_path)
    other.load()
    dead = other.get("T", "G2")
    assert other.get("T", "G1") == alive
    assert dead is not None
    assert dead.is_dead
    assert dead.bloom_filter_data == bloom
    assert not dead.revive().is_dead
    assert other.purge(1000 + 24 * 3600 * 1000) == 0
    assert other.purge(1001 + 24 * 3600 * 1000) == 1
    assert [each.consumer_group for each in other] == ["G1"]


# --- Bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b'{"offsetTable":{"T@G":{0:1}',
        b"[]",
        b'{"offsetTable":[]}',
        b'{"offsetTable":{"T@G":7}}',
        b'{"offsetTable":{"T@G":{"x":1}}}',
        b'{"offsetTable":{"T@G":{"0":"y"}}}',
        b'{"offsetTable":{"T@G":{0:99999999999999999999}}}',
        b'{"offsetTable":{"T@G":{4294967296:1}}}',
        b'{"offsetTable":{"T@G":{0:null}}}',
        b'{"dataVersion":{"counter":"many"},"offsetTable":{}}',
    ],
)
def test_the_backup_is_read_when_the_file_is_broken(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "consumerOffset.json").write_bytes(text)
    with pytest.raises(DocumentError):
        ConsumerOffsetTable(tmp_path).load()
    (tmp_path / "consumerOffset.json.bak").write_bytes(JAVA_4_OFFSETS)
    table = ConsumerOffsetTable(tmp_path)
    assert table.load() is Origin.BACKUP
    assert table.query("GroupA", "TopicA", 0) == 700
    assert table.is_changed
    # Saving must not replace the good backup by the broken file.
    table.save()
    assert (tmp_path / "consumerOffset.json.bak").read_bytes() == JAVA_4_OFFSETS
    assert ConsumerOffsetTable(tmp_path).load() is Origin.FILE


def test_an_empty_file_is_treated_as_missing(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_bytes(b"")
    assert TopicTable(tmp_path).load() is Origin.ABSENT


def test_references_within_a_document_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_bytes(
        b'{"offsetTable":{"A@G":{0:3},"B@G":{"$ref":"$.offsetTable.A\\\\@G"}}}'
    )
    table = ConsumerOffsetTable(tmp_path)
    table.load()
    assert table.query("G", "B", 0) == 3


def test_documents_above_the_limit_of_the_dialect_parser(tmp_path: Path) -> None:
    entries = (
        f'"Topic{number}@Group{number},{{7:":{{0:{number},-1:2}}' for number in range(90_000)
    )
    text = ('{"offsetTable":{' + ",".join(entries) + "}}").encode()
    assert len(text) > 0.7 * fastjson.MAX_DIALECT_BYTES
    padded = text[:-1] + b',"padding":"' + b"x" * fastjson.MAX_DIALECT_BYTES + b'"}'
    table = decode_document(padded)["offsetTable"]
    assert len(table) == 90_000
    assert {str(key): value for key, value in table["Topic77@Group77,{7:"].items()} == {
        "0": 77,
        "-1": 2,
    }
    with pytest.raises(ProtocolError):
        decode_document(padded[:-1])


# --- Replacing ------------------------------------------------------------------------------------


def test_the_previous_version_becomes_the_backup(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "config" / "x.json")
    for number in range(3):
        file.replace(encode_document({"number": number}))
    assert document(file.path) == {"number": 2}
    assert document(file.backup_path) == {"number": 1}
    assert sorted(path.name for path in file.path.parent.iterdir()) == ["x.json", "x.json.bak"]


def test_the_old_or_the_new_version_exists_after_a_failure_at_any_call(tmp_path: Path) -> None:
    operations = ("open", "truncate", "pwrite", "sync", "rename", "sync_directory")
    failures = 0
    for operation in operations:
        for skip in range(3):
            root = tmp_path / f"{operation}-{skip}"
            root.mkdir()
            files = FaultyFiles(root)
            file = JsonFile(root / "x.json", files)
            file.replace(b'{"version":1}')
            file.replace(b'{"version":2}')
            files.fail(operation, errno.ENOSPC, skip=skip)
            try:
                file.replace(b'{"version":3}')
            except StoreError:
                failures += 1
            seen = JsonFile(root / "x.json")
            loaded, _ = seen.load()
            assert loaded["version"] in (2, 3)
            files.heal()
            file.replace(b'{"version":4}')
            assert JsonFile(root / "x.json").load() == ({"version": 4}, Origin.FILE)
    assert failures >= len(operations)


def test_documents_are_sorted_indented_and_readable_by_both_parsers(tmp_path: Path) -> None:
    text = encode_document({"b": {"y": [1, 2], "x": {}}, "a": 'tab\t "quote" \n ✓'})
    assert text.startswith(b'{\n\t"a": "tab\\t')
    assert b'\n\t"b": {\n\t\t"x": {},\n\t\t"y": [\n\t\t\t1,' in text
    assert json.loads(text) == {"b": {"y": [1, 2], "x": {}}, "a": 'tab\t "quote" \n ✓'}
    assert decode_document(text) == json.loads(text)


@pytest.mark.parametrize("damage", [b'{"topicConfigTable"', b'{"topicConfigTable":[1]}'])
def test_a_backup_that_is_used_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(damage)
    path.with_name("topics.json.bak").write_bytes(b'{"topicConfigTable":{}}')
    assert TopicTable(tmp_path).load() is Origin.BACKUP
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{path} cannot be read: " in record.message
    assert f"{path}.bak is used instead" in record.message


# --- Entries that stay encoded --------------------------------------------------------------------

NAMES = ["T", "a", "Z", "ü€😀", 'quo"te', "%RETRY%g", "topicConfigTable", "\\", ""]


@given(
    changes=st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(["put", "remove", "save", "add"]))
    )
)
def test_a_changed_table_is_written_as_a_new_one(changes: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "topics.json").write_bytes(JAVA_5_TOPICS)
        table = TopicTable(Path(folder))
        table.load()
        for number, (name, change) in enumerate(changes):
            config = TopicConfig(
                topic_name=name, perm=number % 8, attributes={"b": "\n\t", "a": '{"x": {}'}
            )
            match change:
                case "put":
                    table.put(name, config)
                case "add":
                    table.put_missing(name, config)
                case "remove":
                    table.remove(name)
                case "save":
                    table.save()
        table.save()
        text = table.file.path.read_bytes()
        assert text == encode_document(json.loads(text))
        written = json.loads(text)
        assert written["topLevelFuture"] == {"a": 1}
        assert written["topicConfigTable"].keys() == set(table)
        again = TopicTable(Path(folder))
        again.load()
        assert dict(again.configs) == dict(table.configs)
        assert again.encode() == text


def test_a_change_encodes_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def counting(document: dict[str, Any]) -> bytes:
        encoded.append(len(document))
        return encode_document(document)

    table = TopicTable(tmp_path)
    for number in range(1000):
        table.put(f"T{number}", TopicConfig(topic_name=f"T{number}"))
    table.save()
    monkeypatch.setattr("goddard.store.tables.encode_document", counting)
    table.put("T500", TopicConfig(topic_name="T500", perm=2))
    table.put("new", TopicConfig(topic_name="new"))
    table.save()
    assert encoded == [2, len(("dataVersion", "topicConfigTable"))]
    assert len(json.loads(table.file.path.read_bytes())["topicConfigTable"]) == 1001


def test_a_snapshot_is_of_its_time(tmp_path: Path) -> None:
    table = SubscriptionGroupTable(tmp_path)
    table.put("one", SubscriptionGroupConfig(group_name="one"))
    table.set_forbidden("one", "T", 4)
    before = table.encode()
    encode = table.snapshot()
    table.put("two", SubscriptionGroupConfig(group_name="two"))
    table.remove("one")
    table.set_forbidden("two", "T", 2)
    assert encode() == before != table.encode()
