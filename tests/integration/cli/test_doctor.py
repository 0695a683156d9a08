"""``goddard doctor``: one test for each finding, on a cluster that is broken in that way."""

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from goddard.cli.doctor.checks import findings
from goddard.cli.doctor.facts import Facts, Finding, Limits
from goddard.cli.doctor.look import Looking
from goddard.client.admin.admin import Admin
from goddard.client.consume.push import PushConsumer
from goddard.clock import SystemClock
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.wire import query_brokers
from tests.support.command_line import CommandLine


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker that is registered with the first of two name servers only."""
    with Cluster(tmp_path_factory.mktemp("sick"), brokers=1) as cluster:
        known = cluster.namesrv
        wait_until(lambda: "broker-0" in query_brokers(known), 30, "registered")
        cluster.start_name_server()
        yield cluster


def doctor(goddard: CommandLine, check: str, *options: str) -> list[dict[str, Any]]:
    """The findings of one check; the exit code must fit."""
    command = ("doctor", "--seconds", "0", "--check", check, *options)
    result = goddard(*command, "--format", "json")
    found: list[dict[str, Any]] = json.loads(result.out)["findings"]
    worst = {one["severity"] for one in found}
    assert result.code == (2 if "error" in worst else 1 if worst else 0), result.err
    assert all(one["advice"] for one in found)
    return found


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


async def test_a_broker_that_restarts(sick: Cluster) -> None:
    (broker,) = sick.brokers
    async with looking(sick) as doctor:
        first = await doctor.look()
        await asyncio.to_thread(broker.kill)
        gone = await doctor.look()
        await asyncio.to_thread(broker.start)
        known = sick.name_servers[0].address
        await asyncio.to_thread(
            wait_until, lambda: "broker-0" in query_brokers(known), 30, "registered"
        )
        back = await doctor.look()
    for before, after, what in ((first, gone, "disappeared"), (first, back, "restarted")):
        (one,) = of_check(findings(Facts(first=before, second=after), Limits()), "flapping")
        assert one.subject == f"broker-0 ({broker.address})"
        assert what in one.problem
        assert "its log" in one.advice


class LateClock(SystemClock):
    def now_ms(self) -> int:
        return super().now_ms() - 60_000


async def test_a_clock_that_is_wrong(cluster: Cluster) -> None:
    async with looking(cluster, clock=LateClock()) as doctor:
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
        "no consumer of this group is online, and 1 messages wait for it"
    ]
    (lag,) = [one for one in doctor(goddard, "lag", "--max-lag", "0") if one["subject"] == group]
    assert lag["problem"] == "1 messages wait for this group"
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
    assert one["problem"] == "2 messages of this group are dead letters"
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


def test_formats_for_monitors(cluster: Cluster, goddard: CommandLine) -> None:
    command = ("doctor", "--seconds", "0", "--check", "ports", "-n")
    where = f"{cluster.namesrv};127.0.0.1:1"
    nagios = goddard(*command, where, "--format", "nagios")
    assert nagios.code == 2
    assert nagios.out.startswith("CLUSTER CRITICAL - 1 errors, 0 warnings - ports 127.0.0.1:1: ")
    assert "| errors=1;;1 warnings=0;1\n" in nagios.out
    metrics = goddard(*command, where, "--format", "prometheus")
    assert 'goddard_doctor_findings{check="ports",severity="error"} 1' in metrics.out
    assert (
        'goddard_doctor_finding{check="ports",severity="error",subject="127.0.0.1:1"} 1'
        in metrics.out
    )
    well = goddard(*command, cluster.namesrv, "--format", "nagios")
    assert (well.code, well.out.startswith("CLUSTER OK - 0 errors, 0 warnings |")) == (0, True)
