"""Our ``mqadmin`` has the verbs and options of the official tools, 5.4.0 and 4.9.4."""

import re
from pathlib import Path

import pytest

from goddard.cli.mqadmin.command import VERBS, find
from goddard.cli.mqadmin.declare import all_flags
from tests.support.java import JavaPeers

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

ACCOUNTS = {
    "updateAclConfig",
    "deleteAclConfig",
    "clusterAclConfigVersion",
    "updateGlobalWhiteAddr",
    "getAclConfig",
}


def official_verbs(java: JavaPeers) -> set[str]:
    return set(re.findall(r"(?m)^ +(\w+) +\S", java.mqadmin()))


def official_flags(text: str) -> set[tuple[str, str]]:
    """The short and the first word of the long name of each option."""
    found = re.findall(r"(?m)^ -(?:(\w+),)?-?-?([\w-]+)", text)
    return {(short, long) for short, long in found}


@pytest.mark.parametrize("version", ["5.4.0", "4.9.4"])
def test_every_verb_with_its_options(tmp_path: Path, version: str) -> None:
    with JavaPeers(version, tmp_path) as java:
        verbs = official_verbs(java)
        driver = java.driver()
        expected = {verb: official_flags(driver.admin("help", verb)) for verb in verbs}
    assert len(verbs) == (90 if version == "5.4.0" else 57)
    ours = {verb.name for verb in VERBS}
    assert ours - verbs == (ACCOUNTS if version == "5.4.0" else ours - verbs)
    for verb, flags in expected.items():
        known = {(one.short, one.long.split()[0]) for one in all_flags(find(verb))}
        assert flags - known <= ({("c", "cplus")} if version == "4.9.4" else set()), verb
