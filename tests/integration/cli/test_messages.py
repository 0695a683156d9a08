"""``goddard produce``, ``consume``, ``message``, ``group``, ``client`` and ``dlq`` on a cluster."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from goddard.client.consume.push import PushConsumer
from goddard.client.listeners.listener import ConsumeContext, ConsumeResult
from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.transactions import TransactionProducer
from goddard.client.values import ConsumeFrom, TransactionState
from goddard.testing.cluster import Cluster
from tests.support.command_line import CommandLine
from tests.support.polling import until


def bodies(goddard: CommandLine, topic: str, *options: str) -> list[str]:
    printed = goddard("consume", topic, *options, "--format", "json")
    return [line["body"] for line in printed.json_lines()]


@contextmanager
def producing(cluster: Cluster, topic: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A process of ``goddard produce`` whose input stays open; killed after 30 s."""
    program = Path(sys.executable).with_name("goddard")
    with subprocess.Popen(
        [program, "produce", topic, "-n", cluster.namesrv, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        watchdog = threading.Timer(30, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def test_lines_are_sent_and_printed(goddard: CommandLine, topic: str) -> None:
    sent = goddard("produce", topic, "-t", "A", "-k", "k1", "-p", "x=1", stdin="one\n\ntwo\n")
    assert (sent.code, sent.err) == (0, f"2 messages sent to {topic}\n")
    assert sorted(goddard("consume", topic).out.splitlines()) == ["one", "two"]
    printed = goddard("consume", topic, "-f", r"%t %g %k %h %s\n")
    assert sorted(printed.out.splitlines()) == [f"{topic} A k1 x=1 one", f"{topic} A k1 x=1 two"]


def test_input_is_read_in_parts(goddard: CommandLine, topic: str) -> None:
    """A line may be longer than one read, and the last one may have no end."""
    long = "x" * 200_000
    assert goddard("produce", topic, stdin=f"{long}\r\n\nlast").code == 0
    assert sorted(bodies(goddard, topic)) == ["last", long]
    assert goddard("produce", topic, "--input", "whole", stdin=f"{long}\nlast\n").code == 0
    assert f"{long}\nlast\n" in bodies(goddard, topic)


def test_json_lines_are_copied_to_another_topic(goddard: CommandLine, topic: str) -> None:
    lines = [
        {"body": "a", "tags": "A", "keys": ["k"], "properties": {"p": "q"}},
        {"bodyBase64": "/wA=", "tags": "B"},
    ]
    text = "\n".join(json.dumps(line) for line in lines)
    assert goddard("produce", topic, "--input", "json", stdin=text).code == 0
    out = goddard("consume", topic, "--format", "json").out
    assert goddard("topic", "create", f"{topic}-copy").code == 0
    assert goddard("produce", f"{topic}-copy", "--input", "json", stdin=out).code == 0
    copies = goddard("consume", f"{topic}-copy", "--format", "json").json_lines()
    assert {(one.get("body"), one.get("bodyBase64"), one["tags"]) for one in copies} == {
        ("a", None, "A"),
        (None, "/wA=", "B"),
    }


def test_filters(goddard: CommandLine, topic: str) -> None:
    goddard("produce", topic, "-t", "A", "-p", "x=1", stdin="one\n")
    goddard("produce", topic, "-t", "B", "-p", "x=2", stdin="two\n")
    assert bodies(goddard, topic, "--tag", "B") == ["two"]
    assert sorted(bodies(goddard, topic, "--tag", "A || B")) == ["one", "two"]
    assert bodies(goddard, topic, "--sql", "x < 2") == ["one"]


def test_messages_with_one_sharding_key_go_to_one_queue(goddard: CommandLine, topic: str) -> None:
    options = ("--sharding-key", "s", "--results", "--format", "json")
    sent = goddard("produce", topic, *options, stdin="".join(f"{n}\n" for n in range(8)))
    sent_one = goddard("message", "send", topic, "9", "--sharding-key", "s", "--format", "json")
    lines = [*sent.json_lines(), json.loads(sent_one.out)]
    assert len(lines) == 9
    assert len({(line["broker"], line["queue"]) for line in lines}) == 1


def test_ranges(goddard: CommandLine, topic: str) -> None:
    goddard("produce", topic, "--sharding-key", "s", stdin="".join(f"{n}\n" for n in range(10)))
    everything = bodies(goddard, topic)
    assert sorted(everything) == [str(n) for n in range(10)]
    assert bodies(goddard, topic, "-r", "@-1h:now") == everything
    assert bodies(goddard, topic, "-r", "@-2h:-1h") == []
    assert bodies(goddard, topic, "-r", "end") == []
    assert bodies(goddard, topic, "-c", "3") == everything[:3]
    (row, *_) = (row for row in goddard.json("topic", "stats", topic) if row["messages"])
    queue = f"{row['broker']}:{row['queue']}"
    of_queue = bodies(goddard, topic, "--queue", queue)
    assert bodies(goddard, topic, "--queue", queue, "-r", "-1") == of_queue[-1:]
    assert bodies(goddard, topic, "--queue", queue, "-r", ":1") == of_queue[:1]


def test_a_scan_shows_its_progress_at_a_terminal(
    cluster: Cluster, goddard: CommandLine, topic: str
) -> None:
    """Its output goes to a pipe here."""
    goddard("produce", topic, stdin="".join(f"{n}\n" for n in range(40)))
    controller, terminal = pty.openpty()
    done = subprocess.run(
        [Path(sys.executable).with_name("goddard"), "consume", topic, "-n", cluster.namesrv],
        stdout=subprocess.PIPE,
        stderr=terminal,
        timeout=60,
        check=True,
    )
    os.close(terminal)
    shown = os.read(controller, 65_536).decode()
    os.close(controller)
    assert len(done.stdout.splitlines()) == 40
    assert "reading" in shown
    assert "40/40" in shown


def test_results_and_failures_come_while_the_next_line_is_awaited(
    cluster: Cluster, topic: str
) -> None:
    with producing(cluster, topic, "--input", "json", "--results") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write('{"body": "a"}\n')
        process.stdin.flush()
        head, row = process.stdout.readline(), process.stdout.readline()
        assert head.split()[0] == "broker".upper()
        assert row.startswith("broker-")
        process.stdin.write(json.dumps({"body": "b" * 5_000_000}) + "\n")
        process.stdin.flush()
        assert process.wait(timeout=30) == 1


def test_ctrl_c_ends_produce_that_waits_for_a_line(cluster: Cluster, topic: str) -> None:
    with producing(cluster, topic, "--results") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("a\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


def test_a_wrong_line_stops_and_is_named(goddard: CommandLine, topic: str) -> None:
    text = '{"body": "a"}\n{"bdy": "b"}\n{"body": "c"}\n'
    done = goddard("produce", topic, "--input", "json", stdin=text)
    assert done.code == 1
    assert done.err == (
        "goddard produce: line 2: unknown field 'bdy'; did you mean body?; 1 message sent before\n"
    )
    assert bodies(goddard, topic) == ["a"]


def test_nothing_is_sent_to_a_misspelt_topic(goddard: CommandLine, topic: str) -> None:
    done = goddard("produce", f"{topic}x", stdin="a\n")
    assert done.code == 1
    assert f"there is no topic {topic}x; did you mean {topic}?" in done.err


def test_a_message_is_sent_and_found(goddard: CommandLine, topic: str) -> None:
    sent = goddard.json("message", "send", topic, "hello", "-k", "order-1")
    for options in (
        ("--id", sent["messageId"]),
        ("--id", sent["offsetMessageId"]),
        ("--key", "order-1"),
        ("--at", f"{sent['broker']}:{sent['queue']}:{sent['offset']}"),
        ("--from=-1h",),
    ):
        found = goddard.json("message", "find", topic, *options)
        assert (found["messageId"], found["body"]) == (sent["messageId"], "hello"), options
    goddard("message", "send", topic, "again", "-k", "order-1")
    for option in ("--key=order-1", "--from=-1h"):
        first = goddard("message", "find", topic, option, "--count", "1", "--format", "json")
        assert first.json()["body"] in {"hello", "again"}
        assert first.err == "only the first 1; --count shows more\n"
    several = goddard("message", "find", topic, "--key", "order-1", "--groups")
    assert (several.code, several.out.count("order-1")) == (1, 2)
    assert "--groups needs one message, not 2; choose one with --id" in several.err
    missing = goddard("message", "find", topic, "--key", "order-2")
    assert missing.code == 1
    assert missing.err.startswith(f"goddard message find: no such message in {topic}")


def test_a_group_consumes_lags_and_is_reset(goddard: CommandLine, topic: str, group: str) -> None:
    goddard("produce", topic, stdin="1\n2\n3\n")
    consumed = goddard("consume", topic, "-g", group)
    assert sorted(consumed.out.splitlines()) == ["1", "2", "3"]
    assert {row["lag"] for row in goddard.json("group", "lag", group)} == {0}
    goddard("produce", topic, stdin="4\n")
    assert sum(row["lag"] for row in goddard.json("group", "lag", group)) == 1
    (listed,) = (row for row in goddard.json("group", "list") if row["group"] == group)
    assert (listed["lag"], listed["topics"]) == (1, [topic])

    preview = goddard.json("group", "reset", group, "--to", "earliest", "--dry-run")
    assert sum(row["repeated"] for row in preview) == 3
    assert sum(row["lag"] for row in goddard.json("group", "lag", group)) == 1
    refused = goddard("group", "reset", group, "--to", "earliest")
    assert refused.code == 2
    assert "0 messages skipped, 3 repeated; add --yes to do it" in refused.err

    assert goddard("group", "reset", group, "--to", "earliest", "--yes").code == 0
    assert sum(row["lag"] for row in goddard.json("group", "lag", group)) == 4
    assert goddard("group", "reset", group, "--to-time", "now", "--yes").code == 0
    assert sum(row["lag"] for row in goddard.json("group", "lag", group)) == 0
    watch = ("group", "watch", group, "--count", "2", "--interval", "0.1")
    watched = goddard(*watch, "--format", "json")
    assert [line["lag"] for line in watched.json_lines()] == [0, 0]


def test_offsets_of_a_file_are_restored(
    goddard: CommandLine, topic: str, group: str, tmp_path: Path
) -> None:
    goddard("produce", topic, stdin="1\n2\n3\n")
    goddard("consume", topic, "-g", group, "-c", "3")
    path = tmp_path / "offsets.csv"
    path.write_text(goddard("group", "lag", group, "--format", "csv").out)
    goddard("group", "reset", group, "--to", "earliest", "--yes")
    assert sum(row["lag"] for row in goddard.json("group", "lag", group)) == 3
    done = goddard("group", "reset", group, "--topic", topic, "--to-file", str(path), "--yes")
    assert done.code == 0, done.err
    assert sum(row["lag"] for row in goddard.json("group", "lag", group)) == 0


def test_a_group_is_created_changed_shown_and_deleted(goddard: CommandLine, group: str) -> None:
    assert goddard("group", "create", group, "--retries", "3", "--orderly").code == 0
    assert goddard("group", "create", group).code == 1
    assert goddard("group", "update", group, "--no-consume").code == 0
    shown = goddard.json("group", "show", group)
    assert (shown["retries"], shown["orderly"], shown["consume"]) == (3, True, False)
    assert shown["brokers"] == ["broker-0", "broker-1"]
    assert shown["members"] == []
    (listed,) = (row for row in goddard.json("group", "list") if row["group"] == group)
    assert listed["lag"] is None
    assert goddard("group", "delete", group).code == 2
    assert goddard("group", "delete", group, "--yes").code == 0
    wrong = goddard("group", "show", group)
    assert wrong.err.startswith(f"goddard group show: there is no group {group}")


async def test_online_consumers_are_listed_and_shown(
    cluster: Cluster, goddard: CommandLine, topic: str, group: str
) -> None:
    consumer = PushConsumer(group, name_servers=cluster.namesrv)
    consumer.subscribe(topic, "A")
    consumer.listen(Listener(fails=False))
    async with consumer:
        rows = await asyncio.to_thread(goddard.json, "client", "list", "--group", group)
        (row,) = [row for row in rows if row["kind"] == "consumer"]
        assert row["client"] == consumer.client_id
        shown = await asyncio.to_thread(goddard.json, "group", "show", group)
        assert {(one["topic"], one["expression"]) for one in shown["subscriptions"]} >= {
            (topic, "A")
        }
        info = await asyncio.to_thread(goddard.json, "client", "show", group, consumer.client_id)
        assert {one["topic"] for one in info["queues"]} >= {topic}
        stack = await asyncio.to_thread(goddard, "client", "stack", group, consumer.client_id)
        assert "thread" in stack.out.lower()
        refused = await asyncio.to_thread(goddard, "group", "delete", group, "--yes")
        assert f"group {group} has online consumers" in refused.err
    wrong = await asyncio.to_thread(goddard, "client", "show", group, "nobody")
    assert wrong.code == 1
    assert f"group {group} has no consumer nobody" in wrong.err


class Listener:
    """Notes the topics of its messages; fails so that they are dead-lettered, until told not to."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.received: list[tuple[str, int]] = []
        self.bodies: list[bytes] = []

    async def __call__(
        self, messages: list[ReceivedMessage], context: ConsumeContext
    ) -> ConsumeResult:
        context.delay_level = -1
        self.received += [(message.topic, message.reconsume_times) for message in messages]
        self.bodies += [message.body for message in messages]
        if self.fails:
            raise ValueError("no such customer")
        return ConsumeResult.SUCCESS


def consumer_of(cluster: Cluster, group: str, topic: str, listener: Listener) -> PushConsumer:
    consumer = PushConsumer(
        group, name_servers=cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET
    )
    consumer.subscribe(topic)
    consumer.listen(listener)
    return consumer


def test_a_group_whose_consumers_were_never_online_is_reset(
    goddard: CommandLine, topic: str, group: str
) -> None:
    goddard("produce", topic, stdin="1\n2\n")
    assert goddard("group", "create", group).code == 0
    nothing = goddard("group", "reset", group, "--to", "earliest", "--yes")
    assert nothing.err == (
        f"goddard group reset: group {group} has no offsets and no online consumers; give --topic\n"
    )
    goddard("group", "reset", group, "--topic", topic, "--to", "latest", "--yes")
    moves = goddard.json("group", "reset", group, "--to", "earliest", "--dry-run")
    assert sum(row["repeated"] for row in moves) == 2


async def test_dead_letters_are_shown_exported_and_sent_to_their_group_alone(
    cluster: Cluster, goddard: CommandLine, topic: str, group: str
) -> None:
    bad, good = Listener(fails=True), Listener(fails=False)
    other = f"{group}-other"
    await asyncio.to_thread(goddard, "produce", topic, "-k", "poison", stdin="bad\n")

    def letters() -> list[dict[str, object]]:
        rows = goddard.json("dlq", "list")
        return [row for row in rows if row["group"] == group and row["deadLetters"]]

    async with (
        consumer_of(cluster, group, topic, bad),
        consumer_of(cluster, other, topic, good),
    ):
        for _ in range(200):
            if await asyncio.to_thread(letters):
                break
            await asyncio.sleep(0.05)
        (letter,) = await asyncio.to_thread(goddard.json, "dlq", "show", group)
        assert letter["failure"] == "ValueError: no such customer"
        assert (letter["originTopic"], letter["keys"]) == (topic, ["poison"])
        shown = await asyncio.to_thread(
            goddard.json, "dlq", "show", group, "--id", letter["messageId"]
        )
        assert (shown["body"], shown["originTopic"]) == ("bad", topic)
        assert shown["failure"] == letter["failure"]
        exported = await asyncio.to_thread(goddard, "dlq", "export", group)
        (line,) = exported.json_lines()
        assert (line["body"], line["originTopic"]) == ("bad", topic)

        bad.fails = False
        resend = ("dlq", "resend", group)
        unsure = await asyncio.to_thread(goddard, *resend, "--yes")
        assert unsure.err == "goddard dlq resend: give --id for some messages, --all, or --file\n"
        asked = await asyncio.to_thread(goddard, *resend, "--all")
        assert (asked.code, "add --yes" in asked.err) == (2, True)
        assert "1 message will be sent" in asked.err
        sent = await asyncio.to_thread(goddard, *resend, "--all", "--yes", "--format", "json")
        (row,) = sent.json_lines()
        assert (row["messageId"], row["result"]) == (letter["messageId"], "sent")
        await until(lambda: len(bad.received) == 2)
        edited = exported.out.replace('"body":"bad"', '"body":"corrected"')
        again = await asyncio.to_thread(goddard, *resend, "--file", "-", "--yes", stdin=edited)
        assert again.err == f"1 message sent to group {group}\n"
        await until(lambda: len(bad.received) == 3)
        bad.fails = True
        await asyncio.to_thread(goddard, *resend, "--all", "--yes")
        for _ in range(200):
            if (await asyncio.to_thread(letters))[0]["deadLetters"] == 2:
                break
            await asyncio.sleep(0.05)
        twice = await asyncio.to_thread(goddard, *resend, "--all", "--yes")
        assert twice.err == f"1 message sent to group {group}\n"
        await until(lambda: len(bad.received) == 5)
    assert bad.received == [(topic, 0)] * 5
    assert bad.bodies[2] == b"corrected"
    assert good.received == [(topic, 0)]
    absent = await asyncio.to_thread(goddard, "dlq", "show", other)
    assert absent.err == f"goddard dlq show: group {other} has no dead letters\n"
    unknown = await asyncio.to_thread(goddard, "dlq", "show", f"{group}x")
    assert f"there is no group {group}x; did you mean {group}" in unknown.err


class Committing:
    """A transaction listener whose transactions all succeed."""

    async def execute(self, message: Message, argument: object) -> TransactionState:
        return TransactionState.COMMIT

    async def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


async def test_a_dead_letter_of_a_transaction_is_no_half_message_when_sent_again(
    cluster: Cluster, goddard: CommandLine, topic: str, group: str
) -> None:
    async with TransactionProducer(
        f"{group}-producer", Committing(), name_servers=cluster.namesrv
    ) as producer:
        await producer.send_in_transaction(Message(topic, b"paid"))
    failing = ("--exec", "exit 1", "--retries", "0", "--count", "1")
    failed = await asyncio.to_thread(goddard, "consume", topic, "-g", group, *failing)
    assert "0 messages consumed, 1 failed" in failed.err
    sent = await asyncio.to_thread(goddard, "dlq", "resend", group, "--all", "--yes")
    assert (sent.code, sent.err) == (0, f"1 message sent to group {group}\n")
    again = await asyncio.to_thread(goddard, "consume", f"%RETRY%{group}")
    assert again.out == "paid\n"
