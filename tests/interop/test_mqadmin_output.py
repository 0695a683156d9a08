"""mqadmin, 5.4.0 and 4.9.4, prints the same with our name server as with RocketMQ's.

One Java broker is registered with both at once. The same commands run against each, one name server
after the other, and leave both unchanged. ``NORMALISED`` lists values that always differ.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from goddard.testing.process import Process, wait_until
from goddard.testing.wire import query_brokers, query_route
from tests.support.java import JavaBroker, JavaDriver, JavaPeers

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

TOPIC = "DiffTopic"
ORDERED = "DiffOrdered"
MISSING = "NoSuchTopic"
NAMESPACE = "DiffSpace"
CLUSTER = "DefaultCluster"
BROKER = "broker-a"

# Every command, in order, without its -n. {broker} is the broker's address.
STEPS: Mapping[str, str] = {
    "clusterList": "clusterList",
    "clusterList more": "clusterList -m",
    "topicList": "topicList",
    "topicList by cluster": "topicList -c",
    "updateTopic on a broker": f"updateTopic -b {{broker}} -t {TOPIC} -r 4 -w 4",
    "updateTopic on a cluster": f"updateTopic -c {CLUSTER} -t {TOPIC} -r 6 -w 5",
    "updateTopic ordered": f"updateTopic -c {CLUSTER} -t {ORDERED} -o true",
    "updateTopic, no such cluster": f"updateTopic -c NoSuchCluster -t {TOPIC}",
    "topicRoute": f"topicRoute -t {TOPIC}",
    "topicRoute as a list": f"topicRoute -t {TOPIC} -l",
    "topicRoute ordered": f"topicRoute -t {ORDERED}",
    "topicRoute, no such topic": f"topicRoute -t {MISSING}",
    "topicList with the new topics": "topicList",
    "topicList by cluster with the new topics": "topicList -c",
    "updateOrderConf put": f"updateOrderConf -m put -t {TOPIC} -v {BROKER}:3",
    "updateOrderConf get": f"updateOrderConf -m get -t {TOPIC}",
    "topicRoute with order": f"topicRoute -t {TOPIC}",
    "updateOrderConf put second broker": f"updateOrderConf -m put -t {TOPIC} -v broker-b:2",
    "updateOrderConf get both": f"updateOrderConf -m get -t {TOPIC}",
    "updateOrderConf delete": f"updateOrderConf -m delete -t {TOPIC}",
    "updateOrderConf get deleted": f"updateOrderConf -m get -t {TOPIC}",
    "updateKvConfig": f"updateKvConfig -s {NAMESPACE} -k key -v value",
    "updateKvConfig again": f"updateKvConfig -s {NAMESPACE} -k key -v other",
    "deleteKvConfig": f"deleteKvConfig -s {NAMESPACE} -k key",
    "deleteKvConfig, no such key": f"deleteKvConfig -s {NAMESPACE} -k key",
    "deleteKvConfig, no such namespace": "deleteKvConfig -s NoSuchSpace -k key",
    "wipeWritePerm": f"wipeWritePerm -b {BROKER}",
    "topicRoute wiped": f"topicRoute -t {TOPIC}",
    "wipeWritePerm again": f"wipeWritePerm -b {BROKER}",
    "addWritePerm": f"addWritePerm -b {BROKER}",
    "topicRoute writable": f"topicRoute -t {TOPIC}",
    "wipeWritePerm, no such broker": "wipeWritePerm -b no-such-broker",
    "addWritePerm, no such broker": "addWritePerm -b no-such-broker",
    "getNamesrvConfig": "getNamesrvConfig",
    "updateNamesrvConfig": "updateNamesrvConfig -k waitSecondsForService -v 46",
    "getNamesrvConfig updated": "getNamesrvConfig",
    "updateNamesrvConfig back": "updateNamesrvConfig -k waitSecondsForService -v 45",
    "updateNamesrvConfig, protected": "updateNamesrvConfig -k configStorePath -v /tmp/elsewhere",
    "getNamesrvConfig back": "getNamesrvConfig",
    "deleteTopic": f"deleteTopic -c {CLUSTER} -t {TOPIC}",
    "deleteTopic ordered": f"deleteTopic -c {CLUSTER} -t {ORDERED}",
    "deleteTopic, no such cluster": f"deleteTopic -c NoSuchCluster -t {TOPIC}",
    "topicRoute deleted": f"topicRoute -t {TOPIC}",
    "topicList in the end": "topicList",
    "clusterList in the end": "clusterList",
}

# Values that always differ, and their placeholders.
NORMALISED: tuple[tuple[str, str], ...] = (
    # Load and the age of the broker's first message, which change with time.
    (r" +\d+\.\d\d\(\d+,\d+ms(\|\d+,\d+ms)?\)", " TPS(LOAD)"),
    (r" +\d+-\d+\(\d+\.\dw, \d+\.\d, \d+\.\d\)", " TIMER"),
    (r" +\d+ +\d{6}\.\d\d +0\.\d{4}", " PCWAIT HOURS SPACE"),
    # After RocketMQ's text, our error names the property and says what to do.
    (r"(Can not update config in black list\.).*", r"\1"),
    # Where a name server listens and keeps its files.
    (r"(?m)^(listenPort +=).*", r"\1 PORT"),
    (r"(?m)^((kvConfigPath|configStorePath|rocketmqHome) +=).*", r"\1 PATH"),
)

# Lists from a hash table: the same lines in any order.
UNORDERED = ("topicList", "getNamesrvConfig")


@dataclass
class Comparison:
    """The output of each command for the reference and for the server under test."""

    expected: dict[str, str]
    actual: dict[str, str]


@dataclass
class Pair:
    reference: Process
    subject: Process
    broker: JavaBroker

    def run(self, driver: JavaDriver, server: Process) -> dict[str, str]:
        printed = {}
        for name, command in STEPS.items():
            verb, *arguments = command.format(broker=self.broker.address).split()
            text = driver.admin(verb, "-n", server.address, *arguments)
            printed[name] = normalise(verb, text.replace(server.address, "NAMESRV"))
        # The broker registered its topics with both, mqadmin removed them from one.
        both = f"{self.reference.address};{self.subject.address}"
        for topic in (TOPIC, ORDERED):
            driver.admin("deleteTopic", "-n", both, "-c", CLUSTER, "-t", topic)
            for each in (self.reference, self.subject):
                assert query_route(each.address, topic) is None
        return printed


def normalise(verb: str, text: str) -> str:
    for pattern, replacement in NORMALISED:
        text = re.sub(pattern, replacement, text)
    return "\n".join(sorted(text.splitlines())) if verb in UNORDERED else text


@pytest.fixture(scope="module")
def pair(java540: JavaPeers, start_name_server: Callable[[dict[str, str]], Process]) -> Pair:
    properties = {"orderMessageEnable": "true"}
    reference = java540.start_name_server("reference", properties=properties)
    subject = start_name_server(properties)
    broker = java540.start_broker(BROKER, namesrv=f"{reference.address};{subject.address}")
    wait_until(
        lambda: all(query_brokers(server.address) for server in (reference, subject)),
        30,
        "the broker registered with both name servers",
    )
    return Pair(reference, subject, broker)


@pytest.fixture(scope="module", params=["5.4.0", "4.9.4"])
def comparison(
    request: pytest.FixtureRequest, pair: Pair, java540: JavaPeers, java494: JavaPeers
) -> Comparison:
    driver = (java540 if request.param == "5.4.0" else java494).driver()
    return Comparison(pair.run(driver, pair.reference), pair.run(driver, pair.subject))


@pytest.mark.parametrize("step", STEPS)
def test_same_output(comparison: Comparison, step: str) -> None:
    assert comparison.expected[step].strip() != ""
    assert comparison.actual[step] == comparison.expected[step]
