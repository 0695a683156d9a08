"""mqadmin 5.4.0 works with our broker, and prints the same as with RocketMQ's.

Two equal clusters: RocketMQ's, and our name server with our broker. The same commands run
against each, one cluster after the other; messages go to one queue, so both have the same.
``NORMALISED`` lists values that always differ. Every command except those in ``REFUSED`` must
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from goddard.testing.cluster import Cluster
from goddard.testing.process import Process, wait_until
from goddard.testing.wire import query_brokers, query_route
from tests.support.java import BROKER_PROPERTIES, JavaDriver, JavaPeers

pytestmark = [pytest.mark.java, pytest.mark.timeout(480)]

BROKER = "broker-a"
CLUSTER = "DefaultCluster"
TOPIC = "AdminTopic"
ORDERED = "AdminOrdered"
TYPED = "AdminTyped"
GROUP = "AdminGroup"
PRODUCERS = "AdminProducers"
ON_BROKER = "-b {broker}"
ON_CLUSTER = f"-c {CLUSTER}"
QUEUE = f"-t {TOPIC} -q 0 -c 3 {ON_BROKER}"
SENT = 6

# Commands in order, without their -n. {broker} is the broker's address, {files} a folder.
PREPARING: Mapping[str, str] = {
    "updateTopic": f"updateTopic {ON_BROKER} -t {TOPIC} -r 1 -w 1",
    "updateTopic on a cluster": f"updateTopic {ON_CLUSTER} -t {ORDERED} -r 2 -w 2 -o true",
    "updateTopic with a type": f"updateTopic {ON_CLUSTER} -t {TYPED} -a +message.type=FIFO",
    "updateTopicList": f"updateTopicList {ON_BROKER} -f {{files}}/topics.json",
    "updateSubGroup": f"updateSubGroup {ON_BROKER} -g {GROUP} -r 3",
    "updateSubGroup on a cluster": f"updateSubGroup {ON_CLUSTER} -g AdminGone",
    "updateSubGroupList": f"updateSubGroupList {ON_BROKER} -f {{files}}/groups.json",
}
# With a consumer and a producer online.
ONLINE: Mapping[str, str] = {
    "clusterList": "clusterList",
    "clusterList more": "clusterList -m",
    "topicList": "topicList",
    "topicList by cluster": "topicList -c",
    "topicRoute": f"topicRoute -t {TOPIC}",
    "topicRoute as a list": f"topicRoute -t {TOPIC} -l",
    "topicStatus": f"topicStatus -t {TOPIC}",
    "topicClusterList": f"topicClusterList -t {TOPIC}",
    "brokerStatus": f"brokerStatus {ON_BROKER}",
    "brokerStatus of a cluster": f"brokerStatus {ON_CLUSTER}",
    "getBrokerConfig": f"getBrokerConfig {ON_BROKER}",
    "getBrokerConfig of a cluster": f"getBrokerConfig {ON_CLUSTER}",
    "consumerConnection": f"consumerConnection -g {GROUP}",
    "consumerStatus": f"consumerStatus -g {GROUP}",
    "consumerStatus of a client": f"consumerStatus -g {GROUP} -i {{client}}",
    "producerConnection": f"producerConnection -g {PRODUCERS} -t {TOPIC}",
    "producer": f"producer {ON_BROKER}",
    "getConsumerConfig": f"getConsumerConfig -g {GROUP}",
    "haStatus": f"haStatus {ON_BROKER}",
    "haStatus of a cluster": f"haStatus {ON_CLUSTER}",
    "statsAll": f"statsAll -t {TOPIC}",
    "statsAll of active topics": "statsAll -a",
    "queryCq": f"queryCq {QUEUE} -i 0",
    "queryCq for a group": f"queryCq {QUEUE} -i 0 -g {GROUP}",
    "allocateMQ": f"allocateMQ -t {TOPIC} -i a,b",
    "queryMsgById to a consumer": f"queryMsgById -t {TOPIC} -g {GROUP} -d {{client}} -i {{msgid}}",
}
# With no client online.
OFFLINE: Mapping[str, str] = {
    "consumerProgress": "consumerProgress",
    "consumerProgress of a group": f"consumerProgress -g {GROUP}",
    "consumerProgress of a topic": f"consumerProgress -g {GROUP} -t {TOPIC}",
    "consumerProgress with clients": f"consumerProgress -g {GROUP} -s true",
    "brokerConsumeStats": f"brokerConsumeStats {ON_BROKER}",
    "queryMsgById": f"queryMsgById -t {TOPIC} -i {{msgid}}",
    "queryMsgByKey": f"queryMsgByKey -t {TOPIC} -k key-3",
    "queryMsgByUniqueKey": f"queryMsgByUniqueKey -t {TOPIC} -i {{key}}",
    "queryMsgByOffset": f"queryMsgByOffset -t {TOPIC} -b {BROKER} -i 0 -o 1",
    "printMsg": f"printMsg -t {TOPIC} -d true",
    "printMsg with a tag": f"printMsg -t {TOPIC} -d true -s TagB",
    "printMsgByQueue": f"printMsgByQueue -t {TOPIC} -a {BROKER} -i 0 -p true -d true",
    "consumeMessage": f"consumeMessage -t {TOPIC} -b {BROKER} -i 0 -o 0 -c 2",
    "exportConfigs": f"exportConfigs {ON_CLUSTER} -f {{files}}",
    "exportMetadata": f"exportMetadata {ON_CLUSTER} -f {{files}}",
    "exportMetadata of topics": f"exportMetadata {ON_CLUSTER} -t -f {{files}}",
    "exportMetadata of groups": f"exportMetadata {ON_CLUSTER} -g -f {{files}}",
    "exportMetrics": f"exportMetrics {ON_CLUSTER} -f {{files}}",
    # The following commands change state.
    "sendMessage": f"sendMessage -t {TOPIC} -p body -k key -c TagB -b {BROKER} -i 0",
    "queryMsgByKey of what was sent": f"queryMsgByKey -t {TOPIC} -k key",
    "resetOffsetByTime": f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s 0",
    "resetOffsetByTime of a queue": (
        f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s 0 {ON_BROKER} -q 0 -o 1"
    ),
    "consumerProgress after a reset": f"consumerProgress -g {GROUP}",
    "skipAccumulatedMessage": f"skipAccumulatedMessage -g {GROUP} -t {TOPIC}",
    "cloneGroupOffset": f"cloneGroupOffset -s {GROUP} -d AdminListed1 -t {TOPIC} -o false",
    "sendMsgStatus": f"sendMsgStatus -b {BROKER} -s 10 -c 3",
    "checkMsgSendRT": f"checkMsgSendRT -t {TOPIC} -s 10 -a 3",
    "updateTopicPerm": f"updateTopicPerm {ON_BROKER} -t {ORDERED} -p 4",
    "updateTopicPerm of a cluster": f"updateTopicPerm {ON_CLUSTER} -t {ORDERED} -p 6",
    "updateOrderConf": f"updateOrderConf -m put -t {ORDERED} -v {BROKER}:2",
    "updateKvConfig": "updateKvConfig -s AdminSpace -k key -v value",
    "deleteKvConfig": "deleteKvConfig -s AdminSpace -k key",
    "getNamesrvConfig": "getNamesrvConfig",
    "updateNamesrvConfig": "updateNamesrvConfig -k waitSecondsForService -v 46",
    "updateBrokerConfig": f"updateBrokerConfig {ON_BROKER} -k waitTimeMillsInSendQueue -v 31000",
    "updateBrokerConfig of a cluster": f"updateBrokerConfig {ON_CLUSTER} -k traceOn -v false",
    "getBrokerConfig updated": f"getBrokerConfig {ON_BROKER}",
    "cleanExpiredCQ": f"cleanExpiredCQ {ON_BROKER}",
    "cleanExpiredCQ of a cluster": f"cleanExpiredCQ {ON_CLUSTER}",
    "cleanUnusedTopic": f"cleanUnusedTopic {ON_BROKER}",
    "deleteExpiredCommitLog": f"deleteExpiredCommitLog {ON_BROKER}",
    "topicStatus after cleaning": f"topicStatus -t {TOPIC}",
    "wipeWritePerm": f"wipeWritePerm -b {BROKER}",
    "addWritePerm": f"addWritePerm -b {BROKER}",
    "deleteSubGroup": f"deleteSubGroup {ON_BROKER} -g AdminListed2 -r true",
    "deleteSubGroup of a cluster": f"deleteSubGroup {ON_CLUSTER} -g AdminGone",
    "deleteTopic": f"deleteTopic {ON_CLUSTER} -t {TYPED}",
    "topicList in the end": "topicList",
    "topicList by cluster in the end": "topicList -c",
}
# Errors have the same text.
REFUSED: Mapping[str, str] = {
    "updateTopic, a bad name": f"updateTopic {ON_BROKER} -t Bad*Topic",
    "updateTopic, a system topic": f"updateTopic {ON_BROKER} -t SCHEDULE_TOPIC_XXXX",
    "updateTopic, an unknown attribute": f"updateTopic {ON_BROKER} -t AdminBad -a +no.such=x",
    "updateTopic, a bad attribute": f"updateTopic {ON_BROKER} -t AdminBad -a +message.type=x",
    "deleteTopic, a system topic": f"deleteTopic {ON_CLUSTER} -t SELF_TEST_TOPIC",
    "updateSubGroup, a bad name": f"updateSubGroup {ON_BROKER} -g Bad*Group",
    "topicStatus, no such topic": "topicStatus -t NoSuchTopic",
    "consumerConnection, no such group": "consumerConnection -g NoSuchGroup",
    "producerConnection, no such group": f"producerConnection -g NoSuchGroup -t {TOPIC}",
    "consumerProgress, no such group": "consumerProgress -g NoSuchGroup",
    "queryCq, beyond the end": f"queryCq {QUEUE} -i 99",
    # mqadmin fails where no group has read an ordered topic.
    "brokerConsumeStats, none ordered": f"brokerConsumeStats {ON_BROKER} -o true",
    "queryCq, no such queue": f"queryCq -t {TOPIC} -q 77 -i 0 -c 3 {ON_BROKER}",
    "queryMsgByKey, no such key": f"queryMsgByKey -t {TOPIC} -k nosuchkey",
    "updateBrokerConfig, protected": f"updateBrokerConfig {ON_BROKER} -k brokerConfigPath -v x",
}
STEPS: Mapping[str, str] = {**PREPARING, **ONLINE, **OFFLINE, **REFUSED}
# Files that commands write.
FILES = ("configs.json", "metadata.json", "topic.json", "subscriptionGroup.json", "metrics.json")

_RATES = "getFoundTps|getMissTps|getTotalTps|getTransferredTps|putTps"
_LATENCIES = "(get|put)MessageEntireTimeMax|putLatency999?|putMessageDistributeTime"
_MOMENTS = "timerReadBehind|remainHowManyDataToFlush|dispatchBehindBytes|pageCacheLockTimeMills"

# Values that always differ, and their placeholders.
NORMALISED: tuple[tuple[str, str], ...] = (
    # Times.
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?", "TIME"),
    (r"\b1[789]\d{11}\b", "MILLISECONDS"),
    (r"\b20\d{15}\b", "TIME"),
    (r"\[ \d+ days, \d+ hours, \d+ minutes, \d+ seconds \]", "DURATION"),
    (r"(consumeTimestamp +:) \d{14}", r"\1 TIME"),
    (r"rt=\d+ms", "rt=TIME"),
    (r"spentTimeMills=\d+", "spentTimeMills=TIME"),
    (r"(?m)^(broker-a +\d +true +)\d+$", r"\1RT"),
    (r"Avg RT: .*", "Avg RT: TIME"),
    # Addresses and ids that are made of addresses and times.
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\b[0-9A-F]{32}\b", "ID"),
    # Clients of mqadmin itself, which connect and disconnect.
    (r"producer group \(CLIENT_INNER_PRODUCER\).*\n", ""),
    # Java objects.
    (r"(\$\$Lambda)\S+|@[0-9a-f]{6,8}\b", r"\1@HASH"),
    # Load, which changes with time.
    (r" +\d+\.\d\d\(\d+,\d+ms(\|\d+,\d+ms)?\)", " TPS(LOAD)"),
    (r" +\d+-\d+\(\d+\.\dw, \d+\.\d, \d+\.\d\)", " TIMER"),
    (r" +\d+ +\d+\.\d\d +0\.\d{4}", " PCWAIT HOURS SPACE"),
    (r'("\w*Tps"): ?[0-9.E-]+', r"\1:RATE"),
    (r"TPS: [0-9.E-]+", "TPS: RATE"),
    (r"( +\d+\.\d\d){5}", " RATES"),
    (r" +\d+\.\d\d +\d+\.\d\d( +\d+ +\d+\n)", r" RATE RATE\1"),
    (rf"((?:{_RATES}|{_LATENCIES}|{_MOMENTS}) *:).*", r"\1 LOAD"),
    # The disk and paths.
    (r"Total : .*, Free : .*", "CAPACITY"),
    (r"(DiskRatio\S* *:) .*", r"\1 RATIO"),
    (r'("\w*DiskRatio"): ?"[^"]*"', r"\1:RATIO"),
    (r"commitLogDiskRatio_\S+:", "commitLogDiskRatio_PATH:"),
    (r"/\S+/(?=[a-zA-Z]+\.json)", "PATH/"),
    (
        r"(?m)^((storePath\w+|rocketmqHome|brokerConfigPath|kvConfigPath|configStorePath) += ).*\n",
        "",
    ),
    (r"(?m)^((listenPort|haListenPort) += ).*", r"\1PORT"),
    # Java computes this value from others when it starts.
    (r"(?m)^(bitMapLengthConsumeQueueExt += ).*", r"\1BITS"),
    # After RocketMQ's text, our error names the property and says what to do.
    (r"(Can not update config in black list\.).*", r"\1"),
)

# Lists from a hash table: the same lines in any order.
UNORDERED = (
    "brokerConsumeStats",
    "getBrokerConfig",
    "getNamesrvConfig",
    "printMsg",
    "producer",
    "statsAll",
    "topicList",
)
_FAILED = re.compile(r"(?m)^\tat |command failed|not supported")


def normalise(verb: str, text: str) -> str:
    for pattern, replacement in NORMALISED:
        text = re.sub(pattern, replacement, text)
    return "\n".join(sorted(text.splitlines())) if verb in UNORDERED else text


@dataclass
class Run:
    """The output of each command for one cluster."""

    name_server: Process
    broker: Process
    driver: JavaDriver
    files: Path
    printed: dict[str, str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)

    def admin(self, command: str) -> str:
        verb, *arguments = command.format(
            broker=self.broker.address, files=self.files, **self.words
        ).split()
        return self.driver.admin(verb, "-n", self.name_server.address, *arguments)

    def run(self, steps: Mapping[str, str]) -> None:
        for name, command in steps.items():
            text = self.admin(command)
            text = text.replace(self.name_server.address, "NAMESRV")
            text = text.replace(self.broker.address, "BROKER")
            self.printed[name] = normalise(command.split()[0], text)

    def everything(self) -> None:
        address = self.name_server.address
        wait_until(lambda: query_brokers(address), 30, "the broker registered")
        self.files.mkdir()
        (self.files / "topics.json").write_text(
            '[{"topicName":"AdminListed1","readQueueNums":3,"writeQueueNums":3},'
            '{"topicName":"AdminListed2"}]'
        )
        (self.files / "groups.json").write_text(
            '[{"groupName":"AdminListed1"},{"groupName":"AdminListed2","retryMaxTimes":5}]'
        )
        self.run(PREPARING)
        wait_until(lambda: query_route(address, TOPIC), 60, f"a route of {TOPIC}")
        self.driver.open_producer("producer", address, PRODUCERS)
        self.driver.send("producer", TOPIC, SENT, tag="TagA")
        self.driver.open_consumer("consumer", address, TOPIC, group=GROUP)
        assert len(set(self.driver.receive("consumer", SENT))) == SENT
        self._find_client_and_message()
        # Rates exist after the first sample, 10 s after the start or later.
        counted = re.compile(rf"{SENT} +{SENT}\s*$")
        wait_until(
            lambda: counted.search(self.admin(f"statsAll -t {TOPIC}")), 30, "figures of a minute"
        )
        self.run(ONLINE)
        self.driver.close_consumer("consumer")
        self.driver.close_producer("producer")
        for group in (GROUP, "TOOLS_CONSUMER"):
            self._wait_offline(group)
        self.run(OFFLINE)
        self.run(REFUSED)
        for name in FILES:
            self.printed[name] = normalise(name, (self.files / name).read_text())

    def _wait_offline(self, group: str) -> None:
        # RocketMQ's broker may handle a heartbeat after its connection was closed; it then
        # keeps the client until it removes silent clients, 120 s later.
        wait_until(
            lambda: "not online" in self.admin(f"consumerConnection -g {group}"),
            150,
            f"the consumers of {group} have left",
        )

    def _find_client_and_message(self) -> None:
        def progress() -> bool:
            # The consumer has committed, so the broker has all that the commands show.
            text = self.admin(f"consumerProgress -g {GROUP} -t {TOPIC}")
            return "Consume Diff Total: 0" in text

        wait_until(progress, 60, "the consumer has committed")
        connections = self.admin(f"consumerConnection -g {GROUP}").splitlines()
        self.words["client"] = connections[1].split()[0]
        shown = self.admin(f"queryMsgByOffset -t {TOPIC} -b {BROKER} -i 0 -o 0")
        found = re.search(r"OffsetID: +(\w+)", shown)
        key = re.search(r"UNIQ_KEY=(\w+)", shown)
        assert found is not None, shown
        assert key is not None, shown
        self.words["msgid"], self.words["key"] = found[1], key[1]


@dataclass
class Comparison:
    expected: dict[str, str]
    actual: dict[str, str]


@pytest.fixture(scope="module")
def comparison(java540: JavaPeers, directory: Path) -> Iterator[Comparison]:
    properties = {**BROKER_PROPERTIES, "brokerName": BROKER}
    with Cluster(directory / "ours") as cluster:
        reference_name_server = java540.start_name_server("reference")
        reference = Run(
            reference_name_server,
            java540.start_broker(BROKER, namesrv=reference_name_server.address),
            # mqadmin keeps a producer that can be used only once: a JVM for each.
            java540.driver(),
            directory / "reference-files",
        )
        subject = Run(
            cluster.start_name_server(),
            cluster.start_broker(properties=properties),
            java540.driver(),
            directory / "our-files",
        )
        for run in (reference, subject):
            run.everything()
        yield Comparison(reference.printed, subject.printed)


@pytest.mark.parametrize("step", [*STEPS, *FILES])
def test_same_output(comparison: Comparison, step: str) -> None:
    assert comparison.actual[step] == comparison.expected[step]
    if step in REFUSED:
        assert comparison.actual[step].strip()
    else:
        assert not _FAILED.search(comparison.actual[step])


def test_enough_commands() -> None:
    verbs = {command.split()[0] for command in [*PREPARING.values(), *ONLINE.values()]}
    verbs |= {command.split()[0] for command in OFFLINE.values()}
    assert len(verbs) >= 45
