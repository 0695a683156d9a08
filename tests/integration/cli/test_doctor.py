"""``goddard doctor``: one test for each finding, on a cluster that is broken in that way."""

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.cli.broker import start_warnings
from goddard.cli.doctor.checks import findings
from goddard.cli.doctor.facts import Facts, Finding, Limits
from goddard.cli.doctor.look import Looking
from goddard.client.admin.admin import Admin
from goddard.client.consume.push import PushConsumer
from goddard.clock import SystemClock
from goddard.config import NameServerConfig
from goddard.environment import Environment
from goddard.nameserver import NameServer
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.wire import query_brokers
from tests.support.command_line import CommandLine
from tests.support.faulty_files import FaultyFiles


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker that is registered with the first of two name servers only."""
    with Cluster(tmp_path_factory.mktemp("sick"), brokers=1) as cluster:
        known = cluster.namesrv
        wait_until(lambda: "broker-0" in query_brokers(known), 30, "registered")
        cluster.start_name_server()
        yield cluster


def doctor(goddard: CommandLine, check: str, *options: str) -> list[dict[str, Any]]:
    """The findings of one check; the exit code must fit all that were printed."""
    command = ("doctor", "--seconds", "0", "--check", check, *options)
    result = goddard(*command, "--format", "json")
    found: list[dict[str, Any]] = json.loads(result.out)["findings"]
    worst = {one["severity"] for one in found}
    assert result.code == (2 if "error" in worst else 1 if worst else 0), result.err
    assert all(one["advice"] for one in found)
    return [one for one in found if one["check"] == check]


@asynccontextmanager
async def looking(cluster: Cluster, **options: Any) -> AsyncIterator[Looking]:
    async with Admin(cluster.namesrv, **options) as admin:
        yield Looking(admin)


def catch_up(goddard: CommandLine, topic: str, group: str) -> None:
    """Create a group that has consumed all messages of a topic."""
    assert goddard("group", "create", group).code == 0
    done = goddard("group", "reset", group, "--topic", topic, "--to", "latest", "--yes")
    assert done.code == 0, done.err


def of_check(found: list[Finding], check: str) -> list[Finding]:
    return [one for one in found if one.check == check]


def test_a_cluster_that_is_well(goddard: CommandLine) -> None:
    for check in ("ports", "addresses", "name-servers", "routes", "flapping", "clock"):
        assert doctor(goddard, check) == []
    text = goddard("doctor", "--seconds", "0", "--check", "ports")
    assert (text.code, text.out.startswith("all is well; checked: ports")) == (0, True)


def test_a_name_server_that_does_not_listen(cluster: Cluster, goddard: CommandLine) -> None:
    (one,) = doctor(goddard, "ports", "-n", f"{cluster.namesrv};127.0.0.1:1")
    assert (one["severity"], one["subject"]) == ("error", "127.0.0.1:1")
    assert "does not answer" in one["problem"]
    assert "goddard namesrv" in one["advice"]


def test_name_servers_that_disagree(sick: Cluster, goddard: CommandLine) -> None:
    (one,) = doctor(goddard, "name-servers", "-n", sick.namesrv)
    assert one["subject"] == sick.name_servers[1].address
    assert "it does not know broker-0" in one["problem"]
    assert "namesrvAddr" in one["advice"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and its slave, both registered with two name servers."""
    with Cluster(tmp_path_factory.mktemp("pair")) as cluster:
        cluster.start_name_server()
        cluster.start_name_server()
        cluster.start_broker()
        slave = {"brokerName": "broker-0", "brokerId": "1", "brokerRole": "SLAVE"}
        cluster.start_broker(properties=slave)
        for server in cluster.name_servers:
            wait_until(partial(has_both, server.address), 30, "both registered")
        yield cluster


def has_both(namesrv: str) -> bool:
    return len(replicas(namesrv)) == 2


def replicas(namesrv: str) -> dict[int, str]:
    """The registered brokers named broker-0, by id."""
    return query_brokers(namesrv).get("broker-0", {})


def test_a_name_server_that_lacks_a_topic(pair: Cluster) -> None:
    second = pair.name_servers[1]
    on_both = CommandLine({"NAMESRV_ADDR": pair.namesrv})
    assert doctor(on_both, "name-servers") == []
    assert on_both("topic", "create", "halfway").code == 0
    one = until_found(on_both, "name-servers", lambda: forget("halfway", second.address))
    assert one["subject"] == second.address
    assert "it does not know halfway, which other name servers know" in one["problem"]
    assert "next registration" in one["advice"]
    gone = until_found(on_both, "routes", lambda: forget("halfway", pair.namesrv))
    assert gone["subject"] == "halfway"
    assert "a broker has this topic, but no name server has a route to it" in gone["problem"]
    assert "registration repeats every 30 s" in gone["advice"]


def forget(topic: str, name_servers: str) -> None:
    async def work() -> None:
        async with Admin(name_servers) as admin:
            await admin.delete_topic_in_name_servers(topic)

    asyncio.run(work())


def until_found(goddard: CommandLine, check: str, damage: Callable[[], None]) -> dict[str, Any]:
    """The finding about a damage, which the next registration of the broker would repair."""
    for _ in range(5):
        damage()
        if found := doctor(goddard, check):
            (one,) = found
            return one
    raise AssertionError(f"{check} found nothing")


def test_a_master_that_is_gone(pair: Cluster) -> None:
    master, _ = pair.brokers
    master.stop()
    try:
        wait_until(lambda: list(replicas(pair.name_servers[0].address)) == [1], 30, "it left")
        on_both = CommandLine({"NAMESRV_ADDR": pair.namesrv})
        found = doctor(on_both, "routes")
    finally:
        master.start()
    # The slave has the topics, so they are no holes in the routes.
    assert not any("no broker that is registered" in one["problem"] for one in found)
    (one,) = [one for one in found if one["subject"] == "broker-0"]
    assert "no master of it is registered" in one["problem"]
    assert "promote a slave" in one["advice"]


def test_a_broker_that_clients_cannot_reach(sick: Cluster, goddard: CommandLine) -> None:
    (broker,) = sick.brokers
    broker.pause()
    try:
        (one,) = doctor(goddard, "addresses", "-n", sick.namesrv, "--timeout", "0.3")
    finally:
        broker.resume()
    assert one["subject"] == f"broker-0 ({broker.address})"
    assert "cannot reach the address that it advertises" in one["problem"]
    assert "brokerIP1" in one["advice"]


def test_too_few_open_files(sick: Cluster, goddard: CommandLine) -> None:
    (broker,) = sick.brokers
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (1_000, 20_000))
    found = doctor(goddard, "files", "-n", sick.namesrv)
    (one,) = [one for one in found if f"process {broker.pid}" in one["subject"]]
    assert "may open only 1000 files" in one["problem"]
    assert "LimitNOFILE" in one["advice"]


def test_open_files_that_run_out(sick: Cluster, goddard: CommandLine) -> None:
    (broker,) = sick.brokers
    before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    used = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used + 3, before[1]))
    found = doctor(goddard, "files", "-n", sick.namesrv)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
    (one,) = [one for one in found if f"process {broker.pid}" in one["subject"]]
    assert one["severity"] == "error"
    assert f" of {used + 3} possible files are open" in one["problem"]
    assert "LimitNOFILE" in one["advice"]


@pytest.mark.parametrize(
    ("used", "severity", "problem"),
    [
        (0.80, "warning", "its disk is 80% full, more than diskMaxUsedSpaceRatio (75%)"),
        (0.95, "error", "its disk is 95% full: it refuses messages"),
    ],
)
async def test_a_disk_that_is_full(
    used: float, severity: str, problem: str, tmp_path: Path, goddard: CommandLine
) -> None:
    files = FaultyFiles(tmp_path / "store")
    files.used = used
    config = NameServerConfig(
        bind_address="127.0.0.1", listen_port=0, rocketmq_home=str(tmp_path / "namesrv")
    )
    async with NameServer(config) as server:
        namesrv = f"127.0.0.1:{server.port}"
        settings = BrokerConfig.from_properties(
            {
                "bindAddress": "127.0.0.1",
                "brokerIP1": "127.0.0.1",
                "listenPort": "0",
                "namesrvAddr": namesrv,
                "storePathRootDir": str(tmp_path / "store"),
                "mappedFileSizeCommitLog": str(16 << 20),
            }
        )
        async with Broker(settings, environment=Environment(files=files)) as broker:
            warnings = list(start_warnings(broker))
            (one,) = await asyncio.to_thread(doctor, goddard, "disk", "-n", namesrv)
    assert (one["severity"], one["problem"].startswith(problem)) == (severity, True)
    assert "fileReservedTime" in one["advice"]
    # The broker also prints it at its terminal.
    refused = f"the disk of {tmp_path / 'store'} is 95% full: messages are refused; free space"
    assert warnings == ([refused] if severity == "error" else [])


def test_what_cannot_be_read(sick: Cluster, goddard: CommandLine) -> None:
    (broker,) = sick.brokers
    known = sick.name_servers[0].address
    assert goddard("topic", "create", "%DLQ%unread", "-n", known).code == 0
    broker.pause()
    try:
        (one,) = doctor(goddard, "incomplete", "-n", known, "--timeout", "0.3")
    finally:
        broker.resume()
    assert one["subject"] == "dead letters %DLQ%unread"
    assert one["problem"].startswith("this could not be read: ")
    assert "--timeout" in one["advice"]


async def test_a_broker_that_stops_answering(sick: Cluster) -> None:
    (broker,) = sick.brokers
    async with looking(sick, timeout_ms=300) as doctor:
        first = await doctor.look()
        broker.pause()
        try:
            second = await doctor.look()
        finally:
            broker.resume()
    (one,) = of_check(findings(Facts(first=first, second=second), Limits()), "flapping")
    assert "stopped answering within" in one.problem
    (one,) = of_check(findings(Facts(first=second, second=first), Limits()), "flapping")
    assert "began to answer within" in one.problem


async def test_a_broker_that_restarts(sick: Cluster) -> None:
    (broker,) = sick.brokers
    async with looking(sick) as doctor:
        first = await doctor.look()
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(wait_until, lambda: not is_registered(sick), 30, "it is gone")
        gone = await doctor.look()
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(wait_until, lambda: is_registered(sick), 30, "registered")
        back = await doctor.look()
    changes = ((first, gone, "disappeared"), (gone, back, "registered"), (first, back, "restarted"))
    for before, after, what in changes:
        (one,) = of_check(findings(Facts(first=before, second=after), Limits()), "flapping")
        assert one.subject == f"broker-0 ({broker.address})"
        assert what in one.problem
        assert "its log" in one.advice


def is_registered(cluster: Cluster) -> bool:
    return "broker-0" in query_brokers(cluster.name_servers[0].address)


class LateClock(SystemClock):
    def now_ms(self) -> int:
        return super().now_ms() - 60_000


async def test_a_clock_that_is_wrong(cluster: Cluster) -> None:
    async with looking(cluster, environment=Environment(clock=LateClock())) as doctor:
        look = await doctor.look()
    found = of_check(findings(Facts(first=look, second=look), Limits()), "clock")
    assert [one.subject.split()[0] for one in found] == ["broker-0", "broker-1"]
    assert "s ahead of this machine's" in found[0].problem
    assert "NTP" in found[0].advice


async def test_a_route_without_a_broker(cluster: Cluster, goddard: CommandLine, topic: str) -> None:
    async with Admin(cluster.namesrv) as admin:
        found = await admin.topic_route(topic)
        await admin.register_topic("lost", found)
        try:
            (one,) = await asyncio.to_thread(doctor, goddard, "routes")
        finally:
            await admin.delete_topic_in_name_servers("lost")
    assert one["subject"] == "lost"
    assert "no broker that is registered has it" in one["problem"]
    assert "goddard topic delete" in one["advice"]


def test_a_group_without_members(goddard: CommandLine, topic: str, group: str) -> None:
    catch_up(goddard, topic, group)
    goddard("produce", topic, stdin="1\n")
    found = [one for one in doctor(goddard, "members") if one["subject"] == group]
    assert [one["problem"] for one in found] == [
        "no consumer of this group is online, and its lag is 1"
    ]
    (lag,) = [one for one in doctor(goddard, "lag", "--max-lag", "0") if one["subject"] == group]
    assert lag["problem"] == "its lag is 1 message"
    assert f"goddard group lag {group}" in lag["advice"]


async def test_a_lag_that_grows(
    cluster: Cluster, goddard: CommandLine, topic: str, group: str
) -> None:
    await asyncio.to_thread(catch_up, goddard, topic, group)
    async with looking(cluster) as doctor:
        first = await doctor.look()
        await asyncio.to_thread(goddard, "produce", topic, stdin="1\n2\n3\n")
        second = await doctor.look()
    found = of_check(findings(Facts(first=first, second=second), Limits(max_lag=10)), "lag")
    (one,) = [one for one in found if one.subject == group]
    assert one.problem.startswith("its lag grows: 0 to 3 messages")
    assert "goddard group watch" in one.advice


async def test_members_with_different_subscriptions(
    cluster: Cluster, goddard: CommandLine, topic: str, group: str
) -> None:
    async with member(cluster, group, topic, "A"), member(cluster, group, topic, "B"):
        found = await asyncio.to_thread(doctor, goddard, "subscriptions")
    (one,) = [one for one in found if one["subject"] == group]
    assert f"{topic} 'A'" in one["problem"]
    assert f"{topic} 'B'" in one["problem"]
    assert "the same subscriptions" in one["advice"]


def member(cluster: Cluster, group: str, topic: str, tags: str) -> PushConsumer:
    consumer = PushConsumer(group, name_servers=cluster.namesrv, instance_name=f"{group}-{tags}")
    consumer.subscribe(topic, tags)
    consumer.listen(lambda messages, context: None)
    return consumer


def test_dead_letters(goddard: CommandLine, group: str) -> None:
    assert goddard("topic", "create", f"%DLQ%{group}", "--queues", "1").code == 0
    goddard("produce", f"%DLQ%{group}", stdin="1\n2\n")
    (one,) = [one for one in doctor(goddard, "dead-letters") if one["subject"] == group]
    assert one["problem"] == "this group has 2 dead letters"
    assert f"goddard dlq show {group}" in one["advice"]


def test_large_messages(goddard: CommandLine, topic: str) -> None:
    goddard("produce", topic, "--input", "whole", stdin="x" * 3_000)
    assert doctor(goddard, "messages") == []
    found = doctor(goddard, "messages", "--max-message", "3000")
    assert [one["subject"] for one in found] == [topic]
    assert found[0]["problem"] == "it has messages of up to 3.1 KiB"
    set_size = ("broker", "config", "set", "broker-1", "--yes")
    goddard(*set_size, "maxMessageSize=1000000")
    (sizes,) = doctor(goddard, "messages")
    goddard(*set_size, "maxMessageSize=4194304")
    assert sizes["problem"].startswith("brokers accept messages of different sizes")


def test_permissions(goddard: CommandLine, topic: str, group: str) -> None:
    goddard("topic", "update", topic, "--permission", "r")
    goddard("group", "create", group, "--no-consume")
    goddard("broker", "config", "set", "broker-0", "brokerPermission=4", "--yes")
    goddard("broker", "permission", "wipe", "broker-1", "--yes")
    found = {one["subject"].split()[0]: one for one in doctor(goddard, "permissions")}
    goddard("broker", "permission", "restore", "broker-1")
    goddard("broker", "config", "set", "broker-0", "brokerPermission=6", "--yes")
    assert found[topic]["problem"].endswith("refuses producers")
    assert found[topic]["advice"] == f"goddard topic update {topic} --permission rw"
    assert found[group]["problem"] == "the group may not consume"
    assert found["broker-0"]["problem"] == "brokerPermission is 4: it refuses producers"
    assert "write permission is wiped" in found["broker-1"]["problem"]


def test_a_check_of_servers_that_do_not_answer_is_not_well(goddard: CommandLine) -> None:
    nowhere = ("doctor", "--seconds", "0", "-n", "127.0.0.1:1")
    disk = goddard(*nowhere, "--check", "disk", "--format", "json")
    found = json.loads(disk.out)
    assert (disk.code, found["checks"]) == (2, ["disk"])
    assert [one["check"] for one in found["findings"]] == ["ports"]
    nagios = goddard(*nowhere, "--check", "dead-letters", "--format", "nagios")
    assert (nagios.code, nagios.out.startswith("CLUSTER CRITICAL")) == (2, True)
    metrics = goddard(*nowhere, "--skip", "ports", "--format", "prometheus")
    assert 'check="disk"' in metrics.out
    assert 'check="ports"' not in metrics.out


def test_formats_for_monitors(cluster: Cluster, goddard: CommandLine) -> None:
    command = ("doctor", "--seconds", "0", "--check", "ports", "-n")
    where = f"{cluster.namesrv};127.0.0.1:1"
    nagios = goddard(*command, where, "--format", "nagios")
    assert nagios.code == 2
    assert nagios.out.startswith("CLUSTER CRITICAL - 1 error, 0 warnings - ports 127.0.0.1:1: ")
    assert "| errors=1;;1 warnings=0;1\n" in nagios.out
    metrics = goddard(*command, where, "--format", "prometheus")
    assert 'goddard_doctor_findings{check="ports",severity="error"} 1' in metrics.out
    assert (
        'goddard_doctor_finding{check="ports",severity="error",subject="127.0.0.1:1"} 1'
        in metrics.out
    )
    well = goddard(*command, cluster.namesrv, "--format", "nagios")
    assert (well.code, well.out.startswith("CLUSTER OK - 0 errors, 0 warnings |")) == (0, True)
