"""``goddard topic``, ``broker``, ``cluster`` and ``config`` on a cluster."""

import json
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from goddard.cli.commands import goddard as command
from goddard.testing.cluster import Cluster
from tests.support.command_line import CommandLine


def test_a_topic_is_created_changed_shown_and_deleted(goddard: CommandLine) -> None:
    created = goddard(
        "topic", "create", "life", "--queues", "3", "--attribute", "message.type=FIFO"
    )
    assert (created.code, created.out) == (0, "")
    assert created.err.startswith("topic life is created on 127.0.0.1:")
    (row,) = (row for row in goddard.json("topic", "list") if row["topic"] == "life")
    assert row == {
        "topic": "life",
        "kind": "normal",
        "queues": 6,
        "permission": ["rw"],
        "brokers": ["broker-0", "broker-1"],
    }

    assert goddard("topic", "update", "life", "--queues", "5", "--permission", "r").code == 0
    shown = goddard.json("topic", "show", "life")
    for broker in shown["brokers"]:
        assert (broker["readQueues"], broker["writeQueues"]) == (5, 5)
        assert broker["permission"] == "r"
        assert broker["attributes"] == {"message.type": "FIFO"}
    assert len(goddard.json("topic", "route", "life")) == 2
    assert len(goddard.json("topic", "stats", "life")) == 10
    assert len(goddard.json("topic", "offsets", "life", "--time=-1h")) == 10

    asked = goddard("topic", "delete", "life")
    assert asked.code == 2
    assert asked.err == (
        "goddard topic delete: topic life and its messages will be deleted; add --yes to do it\n"
    )
    assert goddard("topic", "delete", "life", "--yes").code == 0
    assert all(row["topic"] != "life" for row in goddard.json("topic", "list"))


def test_creating_an_existing_topic_changes_nothing(goddard: CommandLine, topic: str) -> None:
    again = goddard("topic", "create", topic, "--queues", "9")
    assert again.code == 1
    assert again.err == (
        f"goddard topic create: topic {topic} exists; 'goddard topic update' changes it\n"
    )
    assert {row["readQueues"] for row in goddard.json("topic", "route", topic)} == {2}


@pytest.mark.parametrize("words", ["topic list", "topic show a", "broker list", "message send a b"])
def test_a_broker_that_is_given_as_name_server_is_recognised(
    goddard: CommandLine, words: str
) -> None:
    address = goddard.json("broker", "list")[0]["address"]
    failed = goddard(*words.split(), "-n", address)
    assert failed.code == 1
    assert f"{address} is not a name server, or an old one; is it a broker?" in failed.err
    assert failed.err.count("\n") == 1


def test_a_topic_on_one_broker(goddard: CommandLine) -> None:
    assert goddard("topic", "create", "lonely", "--broker", "broker-1").code == 0
    assert [row["broker"] for row in goddard.json("topic", "route", "lonely")] == ["broker-1"]
    more = goddard("topic", "create", "lonely", "--broker", "broker-0")
    assert more.code == 0, more.err


def test_names_are_suggested(goddard: CommandLine, topic: str) -> None:
    wrong = goddard("topic", "show", f"{topic}x")
    assert wrong.code == 1
    assert wrong.err == (f"goddard topic show: there is no topic {topic}x; did you mean {topic}?\n")


def test_text_formats(goddard: CommandLine, topic: str) -> None:
    text = goddard("topic", "route", topic)
    assert text.out.splitlines()[0].split() == [
        *("CLUSTER", "BROKER", "ID", "ADDRESS", "READ", "QUEUES", "WRITE", "QUEUES", "PERMISSION")
    ]
    csv = goddard("topic", "route", topic, "--format", "csv")
    assert csv.out.splitlines()[0] == "cluster,broker,id,address,readQueues,writeQueues,permission"
    yaml = goddard("topic", "route", topic, "--format", "yaml")
    assert yaml.out.startswith('- cluster: "DefaultCluster"\n  broker: "broker-0"\n')


def test_brokers_and_clusters(goddard: CommandLine) -> None:
    rows = goddard.json("broker", "list")
    assert [(row["broker"], row["id"], row["answers"]) for row in rows] == [
        ("broker-0", 0, True),
        ("broker-1", 0, True),
    ]
    shown = goddard.json("broker", "show", "broker-0")
    assert shown["version"].startswith("V")
    assert len(shown["replicas"]) == 1
    names = {row["name"] for row in goddard.json("broker", "stats", "broker-0")}
    assert {"putTps", "bootTimestamp"} <= names
    assert goddard.json("cluster", "list") == [
        {
            "cluster": "DefaultCluster",
            "brokers": ["broker-0", "broker-1"],
            "masters": 2,
            "replicas": 0,
        }
    ]
    assert len(goddard.json("cluster", "show")["brokers"]) == 2


def test_broker_configuration_is_changed_and_read_back(goddard: CommandLine) -> None:
    get = ("broker", "config", "get", "broker-0", "maxMessageSize")
    assert goddard.json(*get) == [{"name": "maxMessageSize", "value": "4194304"}]
    changed = goddard("broker", "config", "set", "broker-0", "maxMessageSize=4000000", "--yes")
    assert changed.code == 0
    assert changed.err == "broker-0 is changed: maxMessageSize: 4194304 to 4000000\n"
    assert goddard.json(*get) == [{"name": "maxMessageSize", "value": "4000000"}]


@pytest.mark.parametrize("verb", ["get", "set"])
def test_unknown_properties_are_refused_with_a_suggestion(goddard: CommandLine, verb: str) -> None:
    pair = "maxMesageSize" if verb == "get" else "maxMesageSize=1"
    wrong = goddard("broker", "config", verb, "broker-0", pair)
    assert wrong.code == 1
    assert wrong.err.endswith(
        "the broker has no property maxMesageSize; did you mean maxMessageSize?\n"
    )


def test_write_permission_is_wiped_and_restored(goddard: CommandLine, topic: str) -> None:
    assert goddard("broker", "permission", "wipe", "broker-0", "--yes").code == 0
    permissions = {
        row["broker"]: row["permission"] for row in goddard.json("topic", "route", topic)
    }
    assert permissions == {"broker-0": "r", "broker-1": "rw"}
    assert goddard("broker", "permission", "restore", "broker-0").code == 0
    assert {row["permission"] for row in goddard.json("topic", "route", topic)} == {"rw"}
    wrong = goddard("broker", "permission", "restore", "broker-9")
    assert wrong.code == 2
    assert "no topic of broker-9 was changed" in wrong.err


def test_values_of_the_name_servers(goddard: CommandLine) -> None:
    assert goddard("config", "set", "SPACE", "key", "value").code == 0
    assert goddard.json("config", "list", "SPACE") == [{"key": "key", "value": "value"}]
    assert goddard.json("config", "get", "SPACE", "key")["value"] == "value"
    assert goddard("config", "delete", "SPACE", "key", "--yes").code == 0
    gone = goddard("config", "delete", "SPACE", "key", "--yes")
    assert gone.err == "goddard config delete: namespace SPACE has no key key\n"
    rows = goddard.json("config", "name-servers")
    assert "listenPort" in {row["name"] for row in rows}


def test_contexts_say_where_the_cluster_is(cluster: Cluster, tmp_path: Path) -> None:
    goddard = CommandLine({"GODDARD_CONTEXTS": f"{tmp_path}/contexts.json"})
    assert "no name server is given" in goddard("topic", "list").err
    assert goddard("context", "set", "here", "-n", cluster.namesrv).code == 0
    assert goddard("context", "set", "nowhere", "-n", "127.0.0.1:1").code == 0
    assert goddard("cluster", "list").code == 0
    assert goddard("context", "use", "nowhere").code == 0
    assert goddard("cluster", "list").code == 1
    assert goddard("cluster", "list", "--context", "here").code == 0
    assert goddard("cluster", "list", "-n", cluster.namesrv).code == 0
    rows = goddard.json("context", "list")
    assert [(row["name"], row["selected"]) for row in rows] == [("here", False), ("nowhere", True)]
    assert goddard("context", "delete", "nowhere").code == 0
    assert "no context is selected" in goddard("context", "show").err


def test_a_secret_key_comes_from_standard_input_and_is_not_shown(tmp_path: Path) -> None:
    goddard = CommandLine({"GODDARD_CONTEXTS": f"{tmp_path}/contexts.json"})
    made = goddard("context", "set", "a", "-n", "h:1", "--access-key", "ak", stdin="hidden\n")
    assert made.code == 0, made.err
    shown = goddard("context", "show", "a")
    assert "hidden" not in shown.out
    kept = json.loads((tmp_path / "contexts.json").read_text())
    assert kept["contexts"]["a"]["secret_key"] == "hidden"


def test_topics_are_completed_from_the_cluster(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
    complete = BashComplete(command, {}, "goddard", "_GODDARD_COMPLETE")
    found = {item.value for item in complete.get_completions(["topic", "show"], topic[:6])}
    assert topic in found
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    assert complete.get_completions(["topic", "show"], "") == []
