"""Lists while one of two brokers does not answer: the rest is shown, and the exit code is 1."""

from goddard.testing.cluster import Cluster
from tests.support.command_line import CommandLine


def test_lists_show_what_the_other_broker_knows(
    cluster: Cluster, goddard: CommandLine, topic: str, group: str
) -> None:
    assert goddard("produce", topic, stdin="1\n2\n").code == 0
    assert goddard("topic", "create", f"%RETRY%{group}").code == 0
    assert goddard("topic", "create", f"%DLQ%{group}").code == 0
    assert goddard("group", "create", group).code == 0
    done = goddard("group", "reset", group, "--topic", topic, "--to", "latest", "--yes")
    assert done.code == 0, done.err
    commands = {
        "topic list": topic,
        "topic stats " + topic: "broker-0",
        "group list --members": group,
        "group lag " + group: "broker-0",
        "dlq list": group,
        "client list": None,
    }
    stopped = cluster.brokers[1]
    stopped.pause()
    try:
        results = {command: goddard(*command.split(), "--timeout", "0.3") for command in commands}
    finally:
        stopped.resume()
    for command, shown in commands.items():
        result = results[command]
        assert result.code == 1, command
        assert "incomplete, not read: " in result.err, command
        assert shown is None or shown in result.out, (command, result)


def test_nothing_is_claimed_if_no_broker_answers(cluster: Cluster, goddard: CommandLine) -> None:
    for broker in cluster.brokers:
        broker.pause()
    try:
        result = goddard("client", "list", "--group", "nobody", "--timeout", "0.3")
    finally:
        for broker in cluster.brokers:
            broker.resume()
    assert result.code == 1
    assert "nothing was read" in result.err
