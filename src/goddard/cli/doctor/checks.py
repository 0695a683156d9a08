"""The checks of ``goddard doctor``. Pure: facts in, findings out."""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from goddard.cli.doctor.facts import BrokerLook, Facts, Finding, Limits, Severity
from goddard.cli.render import bytes_text, counted
from goddard.protocol.codes import MASTER_ID, Permission
from goddard.protocol.names import is_internal_topic
from goddard.transport.client import split_address

Check = Callable[[Facts, Limits], Iterator[Finding]]

_READ_WRITE: Final = int(Permission.READ | Permission.WRITE)
_DISK_FULL: Final = 0.90
_DEFAULT_DISK_USED: Final = 0.75
_FILES_IN_USE: Final = 0.8
_GROWTH: Final = 0.1

_E: Final = Severity.ERROR
_W: Final = Severity.WARNING


def _ports(facts: Facts, _: Limits) -> Iterator[Finding]:
    for server in facts.second.name_servers:
        if server.problem is not None:
            yield Finding(
                "ports",
                _E,
                server.address,
                f"the name server does not answer: {server.problem}",
                "start 'goddard namesrv' there, or correct the address and the firewall",
                is_unread=True,
            )


def _addresses(facts: Facts, _: Limits) -> Iterator[Finding]:
    is_local = all(_is_loopback(one.address) for one in facts.second.name_servers)
    for broker in facts.second.brokers:
        if broker.problem is not None:
            yield Finding(
                "addresses",
                _E,
                broker.title,
                f"clients here cannot reach the address that it advertises: {broker.problem}",
                "set brokerIP1 to an address that clients reach, and open its port; or start it",
                is_unread=True,
            )
        elif not is_local and _is_loopback(broker.place.address):
            yield Finding(
                "addresses",
                _E,
                broker.title,
                "it advertises a loopback address, which clients on other machines cannot reach",
                "set brokerIP1 (goddard broker: --host) to an address of that machine",
            )


def _is_loopback(address: str) -> bool:
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def number(figures: Mapping[str, str], name: str) -> float | None:
    """The number that a figure or a property begins with."""
    try:
        return float(figures[name].split()[0])
    except (KeyError, IndexError, ValueError):
        return None


def _disk(facts: Facts, _: Limits) -> Iterator[Finding]:
    for broker in facts.second.answering:
        used = number(broker.runtime, "commitLogDiskRatio")
        if used is None:
            continue
        config = facts.configs.get(broker.place.address, {})
        percent = number(config, "diskMaxUsedSpaceRatio")
        limit = percent / 100 if percent is not None else _DEFAULT_DISK_USED
        if used >= _DISK_FULL:
            yield Finding(
                "disk",
                _E,
                broker.title,
                f"its disk is {used:.0%} full: it refuses messages",
                "free space or add disk; a shorter fileReservedTime deletes old messages",
            )
        elif used >= limit:
            yield Finding(
                "disk",
                _W,
                broker.title,
                f"its disk is {used:.0%} full, more than diskMaxUsedSpaceRatio ({limit:.0%}): "
                "messages are deleted before fileReservedTime",
                "free space, add disk, or lower fileReservedTime",
            )


def _clock(facts: Facts, limits: Limits) -> Iterator[Finding]:
    for broker in facts.second.answering:
        now_ms = broker_time_ms(broker.runtime)
        if now_ms is None:
            continue
        ahead = (now_ms - broker.asked_ms) / 1000
        if abs(ahead) > limits.clock_seconds:
            yield Finding(
                "clock",
                _W,
                broker.title,
                f"its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this "
                "machine's: delays, retention and times of messages are wrong",
                "synchronise the clocks of all machines with NTP (chrony)",
            )


def broker_time_ms(runtime: Mapping[str, str]) -> int | None:
    """A broker's clock: when it started plus how long it runs, which it tells in seconds."""
    started = runtime.get("bootTimestamp", "")
    parts = [int(part) for part in re.findall(r"\d{1,9}", runtime.get("runtime", ""))]
    if not started.isdecimal() or len(parts) != 4:
        return None
    days, hours, minutes, seconds = parts
    return int(started) + 1000 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _files(facts: Facts, limits: Limits) -> Iterator[Finding]:
    for process in facts.processes:
        where = f"{process.address} (process {process.pid})"
        if process.open_files >= _FILES_IN_USE * process.max_open_files:
            yield Finding(
                "files",
                _E,
                where,
                f"{process.open_files} of {process.max_open_files} possible files are open: soon "
                "it cannot accept connections",
                f"raise the limit (LimitNOFILE=, ulimit -n) to {limits.open_files} and restart it",
            )
        elif process.max_open_files < limits.open_files:
            yield Finding(
                "files",
                _W,
                where,
                f"it may open only {process.max_open_files} files; each connection and segment "
                "needs one",
                f"raise the limit (LimitNOFILE=, ulimit -n) to {limits.open_files} and restart it",
            )


def _name_servers(facts: Facts, _: Limits) -> Iterator[Finding]:
    servers = [one for one in facts.second.name_servers if one.problem is None]
    brokers = frozenset().union(*(one.brokers for one in servers))
    topics = frozenset().union(*(one.topics for one in servers))
    for server in servers:
        if missing := sorted(brokers - server.brokers):
            yield Finding(
                "name-servers",
                _E,
                server.address,
                f"it does not know {_some(missing)}, which other name servers know",
                "list all name servers in namesrvAddr of every broker",
            )
        elif unknown := sorted(topics - server.topics):
            yield Finding(
                "name-servers",
                _W,
                server.address,
                f"it does not know {_some(unknown, 'topics')}, which other name servers know",
                "wait for the next registration (30 s); check the broker's log if it stays so",
            )


def _some(names: list[str], what: str = "") -> str:
    text = ", ".join(names[:3])
    return text if len(names) <= 3 else f"{text} and {len(names) - 3} more {what}".rstrip()


def _routes(facts: Facts, _: Limits) -> Iterator[Finding]:
    places = [one.place for one in facts.second.brokers]
    masters = {place.name for place in places if place.broker_id == MASTER_ID}
    for name in sorted({place.name for place in places} - masters):
        yield Finding(
            "routes",
            _E,
            name,
            "no master of it is registered: consumers read from its slaves, producers cannot send",
            "start the master, or promote a slave: goddard broker promote ADDRESS",
        )
    listed = frozenset().union(*(one.topics for one in facts.second.name_servers))
    of_brokers = {one.topic for one in facts.topics if not is_internal_topic(one.topic)}
    for topic in sorted(of_brokers - listed):
        yield Finding(
            "routes",
            _E,
            topic,
            "a broker has this topic, but no name server has a route to it",
            "check that the broker reaches the name servers; registration repeats every 30 s",
        )
    for topic in facts.topics_without_broker:
        yield Finding(
            "routes",
            _E,
            topic,
            "the name servers know this topic, but no broker that is registered has it",
            "start its broker; or delete the topic: goddard topic delete",
        )


def _flapping(facts: Facts, _: Limits) -> Iterator[Finding]:
    seconds = max(1, round((facts.second.at_ms - facts.first.at_ms) / 1000))
    first = {one.place.address: one for one in facts.first.brokers}
    second = {one.place.address: one for one in facts.second.brokers}
    advice = "look into its log and into the system's (out of memory?); check the network"
    for address in sorted(first.keys() | second.keys()):
        before, after = first.get(address), second.get(address)
        what = _change(before, after)
        if what is not None:
            known = after or before
            assert known is not None
            problem = f"it {what} within {seconds} s"
            yield Finding("flapping", _E, known.title, problem, advice)


def _change(before: BrokerLook | None, after: BrokerLook | None) -> str | None:
    if before is None:
        return "registered"
    if after is None:
        return "disappeared from the name servers"
    if (before.problem is None) != (after.problem is None):
        return "began to answer" if after.problem is None else "stopped answering"
    started = before.runtime.get("bootTimestamp"), after.runtime.get("bootTimestamp")
    return "restarted" if None not in started and started[0] != started[1] else None


def _members(facts: Facts, _: Limits) -> Iterator[Finding]:
    for group in facts.groups:
        lag = facts.second.lags.get(group.name, 0)
        if not group.members and lag > 0:
            yield Finding(
                "members",
                _W,
                group.name,
                f"no consumer of this group is online, and its lag is {lag}",
                "start its consumers; delete the group if nobody needs it: goddard group delete",
            )


def _subscriptions(facts: Facts, _: Limits) -> Iterator[Finding]:
    for group in facts.groups:
        if len(set(group.subscriptions.values())) < 2:
            continue
        texts = [
            f"{client} has {_subscribed(wanted)}"
            for client, wanted in sorted(group.subscriptions.items())
        ]
        yield Finding(
            "subscriptions",
            _E,
            group.name,
            f"its members have different subscriptions: {'; '.join(texts[:3])}",
            "messages are lost to members that filter them out: give all members the same "
            "subscriptions, or use another group",
        )


def _subscribed(wanted: frozenset[tuple[str, str]]) -> str:
    return ", ".join(f"{topic} '{expression}'" for topic, expression in sorted(wanted)) or "none"


def _lag(facts: Facts, limits: Limits) -> Iterator[Finding]:
    seconds = max(1, round((facts.second.at_ms - facts.first.at_ms) / 1000))
    for name, lag in sorted(facts.second.lags.items()):
        grown = lag - facts.first.lags.get(name, lag)
        if lag > limits.max_lag:
            yield Finding(
                "lag",
                _W,
                name,
                f"its lag is {counted(lag, 'message')}"
                + (f", {grown} more than {seconds} s ago" if grown > 0 else ""),
                f"add consumers or threads; look at the slowest queue: goddard group lag {name}",
            )
        elif grown > 0 and lag > _GROWTH * limits.max_lag:
            yield Finding(
                "lag",
                _W,
                name,
                f"its lag grows: {lag - grown} to {lag} messages within {seconds} s",
                f"watch it with 'goddard group watch {name}'; add consumers if it goes on",
            )


def _dead_letters(facts: Facts, _: Limits) -> Iterator[Finding]:
    for group, count in sorted(facts.dead_letters.items()):
        if count:
            yield Finding(
                "dead-letters",
                _W,
                group,
                f"this group has {counted(count, 'dead letter')}",
                f"goddard dlq show {group} says why; goddard dlq resend {group} delivers again",
            )


def _messages(facts: Facts, limits: Limits) -> Iterator[Finding]:
    for topic, size in sorted(facts.largest.items()):
        if size > limits.message_bytes:
            yield Finding(
                "messages",
                _W,
                topic,
                f"it has messages of up to {bytes_text(size)}",
                "store large content elsewhere and send a reference, or let the client compress",
            )
    limits_of = {
        address: config["maxMessageSize"]
        for address, config in facts.configs.items()
        if "maxMessageSize" in config
    }
    if len(set(limits_of.values())) > 1:
        texts = ", ".join(f"{address} {size}" for address, size in sorted(limits_of.items()))
        yield Finding(
            "messages",
            _W,
            "maxMessageSize",
            f"brokers accept messages of different sizes: {texts}",
            "set the same maxMessageSize: goddard broker config set BROKER maxMessageSize=BYTES",
        )


def _permissions(facts: Facts, limits: Limits) -> Iterator[Finding]:
    yield from _broker_permissions(facts, limits)
    for one in facts.topics:
        if not is_internal_topic(one.topic) and one.perm & _READ_WRITE != _READ_WRITE:
            yield Finding(
                "permissions",
                _W,
                one.topic,
                f"its permission on {one.broker} refuses {_refused(one.perm)}",
                f"goddard topic update {one.topic} --permission rw",
            )
    for group in facts.groups:
        if not group.consumes:
            yield Finding(
                "permissions",
                _W,
                group.name,
                "the group may not consume",
                f"goddard group update {group.name} --consume",
            )


def _broker_permissions(facts: Facts, _: Limits) -> Iterator[Finding]:
    refusing = set()
    for broker in facts.second.answering:
        config = facts.configs.get(broker.place.address, {})
        bits = config.get("brokerPermission", str(_READ_WRITE))
        if bits.isdecimal() and int(bits) & _READ_WRITE != _READ_WRITE:
            refusing.add(broker.place.name)
            yield Finding(
                "permissions",
                _W,
                broker.title,
                f"brokerPermission is {bits}: it refuses {_refused(int(bits))}",
                f"goddard broker config set {broker.place.name} brokerPermission={_READ_WRITE}",
            )
    for name in facts.wiped_brokers:
        if name in refusing:
            continue
        yield Finding(
            "permissions",
            _W,
            name,
            "its write permission is wiped: producers do not send to it",
            f"goddard broker permission restore {name}",
        )


def _refused(bits: int) -> str:
    names = ((Permission.READ, "consumers"), (Permission.WRITE, "producers"))
    return " and ".join(name for bit, name in names if not bits & bit)


def _unread(facts: Facts, _: Limits) -> Iterator[Finding]:
    for what, reason in sorted(facts.unread.items()):
        yield Finding(
            "incomplete",
            _W,
            what,
            f"this could not be read: {reason}",
            "correct the other findings first; a longer --timeout may help",
            is_unread=True,
        )


CHECKS: Final[Mapping[str, Check]] = {
    "ports": _ports,
    "addresses": _addresses,
    "disk": _disk,
    "clock": _clock,
    "files": _files,
    "name-servers": _name_servers,
    "routes": _routes,
    "flapping": _flapping,
    "members": _members,
    "subscriptions": _subscriptions,
    "lag": _lag,
    "dead-letters": _dead_letters,
    "messages": _messages,
    "permissions": _permissions,
    "incomplete": _unread,
}


def findings(facts: Facts, limits: Limits) -> list[Finding]:
    """The findings of all checks; errors first."""
    found = [one for check in CHECKS.values() for one in check(facts, limits)]
    return sorted(found, key=lambda one: one.severity is not Severity.ERROR)


def chosen_checks(wanted: Collection[str], skipped: Collection[str]) -> list[str]:
    """The names of the checks to report: the wanted ones, or all, without the skipped ones."""
    return [name for name in CHECKS if name in (wanted or CHECKS) and name not in skipped]


def chosen_findings(
    found: Iterable[Finding], chosen: Collection[str], skipped: Collection[str]
) -> list[Finding]:
    """The findings of the chosen checks, and those about servers that could not be read.

    Without the latter, a check of servers that do not answer would find nothing.
    """
    return [
        one for one in found if one.check in chosen or (one.is_unread and one.check not in skipped)
    ]
