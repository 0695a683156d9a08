"""Findings that need a full disk, several machines or much load; the figures are a broker's."""

from collections.abc import Mapping

import pytest

from goddard.cli.doctor.checks import broker_time_ms, findings
from goddard.cli.doctor.facts import (
    BrokerLook,
    Facts,
    Finding,
    Limits,
    LocalProcess,
    Look,
    NameServerLook,
    Severity,
)
from goddard.cli.doctor.report import exit_code, nagios, prometheus, text
from goddard.client.admin.values import BrokerPlace

PLACE = BrokerPlace("c", "broker-a", 0, "10.0.0.5:10911")


def look(place: BrokerPlace = PLACE, runtime: Mapping[str, str] | None = None) -> Look:
    broker = BrokerLook(place=place, runtime=runtime or {})
    servers = [NameServerLook(address="10.0.0.4:9876")]
    return Look(at_ms=0, name_servers=servers, brokers=[broker])


def only(facts: Facts, check: str) -> Finding:
    (found,) = [one for one in findings(facts, Limits()) if one.check == check]
    return found


@pytest.mark.parametrize(
    ("used", "severity", "problem"),
    [
        ("0.80 0.8", Severity.WARNING, "its disk is 80% full, more than diskMaxUsedSpaceRatio"),
        ("0.95", Severity.ERROR, "its disk is 95% full: it refuses messages"),
    ],
)
def test_a_full_disk(used: str, severity: Severity, problem: str) -> None:
    now = look(runtime={"commitLogDiskRatio": used})
    found = only(Facts(first=now, second=now), "disk")
    assert (found.severity, found.problem.startswith(problem)) == (severity, True)
    assert "fileReservedTime" in found.advice
    config = {PLACE.address: {"diskMaxUsedSpaceRatio": "85"}}
    relaxed = findings(Facts(first=now, second=now, configs=config), Limits())
    assert len(relaxed) == (severity is Severity.ERROR)


def test_a_loopback_address_that_other_machines_cannot_reach() -> None:
    now = look(BrokerPlace("c", "broker-a", 0, "127.0.0.1:10911"))
    found = only(Facts(first=now, second=now), "addresses")
    assert "advertises a loopback address" in found.problem
    assert "brokerIP1" in found.advice


def test_a_broker_without_a_master() -> None:
    now = look(BrokerPlace("c", "broker-a", 1, "10.0.0.6:10911"))
    found = only(Facts(first=now, second=now), "routes")
    assert (found.subject, "no master" in found.problem) == ("broker-a", True)


def test_files_that_run_out() -> None:
    process = LocalProcess(address="a:1", pid=7, open_files=900, max_open_files=1_000)
    found = only(Facts(first=look(), second=look(), processes=[process]), "files")
    assert found.severity is Severity.ERROR
    assert found.problem.startswith("900 of 1000 possible files are open")


def test_what_could_not_be_read_is_a_finding() -> None:
    found = only(Facts(first=look(), second=look(), unread={"lags": "late"}), "incomplete")
    assert (found.subject, found.problem) == ("lags", "this could not be read: late")


@pytest.mark.parametrize(
    ("runtime", "time_ms"),
    [
        (
            {"bootTimestamp": "1000", "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"},
            93785000,
        ),
        ({"bootTimestamp": "1000"}, None),
        ({"runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"}, None),
    ],
)
def test_the_clock_of_a_broker(runtime: dict[str, str], time_ms: int | None) -> None:
    assert broker_time_ms(runtime) == time_ms


def test_text_of_others_cannot_change_the_report() -> None:
    evil = Finding("lag", Severity.WARNING, 'g"\\\n{', "a | b\x1b[2J", "do")
    assert exit_code([evil]) == 1
    assert nagios([evil], []).count("|") == 1
    assert "\x1b[2J" not in text([evil], [])
    assert r'subject="g\"\\ {"' in prometheus([evil], ["lag"])
