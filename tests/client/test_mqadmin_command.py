"""Our ``mqadmin`` prints what the official one of 5.4.0 prints, for both kinds of clusters.

Both tools run the same commands against the same cluster, the official one in a shared JVM, ours in
this process. ``NORMALISED`` lists values that always differ. Verbs that change something are run
with ours; what the official tool prints afterwards shows the change.
"""

import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from goddard import Admin, MessageQueue
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from tests.support.command_line import CommandLine, Result
from tests.support.java import JavaDriver, JavaPeers

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

CLUSTER = "DefaultCluster"
GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "store"
MESSAGES = 5

# Read-only commands. {topic} has messages that {group} consumed, {id} is the id of one.
READS = {
    "clusterList": "clusterList",
    "clusterList more": "clusterList -m",
    "clusterList of one cluster": f"clusterList -c {CLUSTER}",
    "topicList": "topicList",
    "topicList with clusters": "topicList -c",
    "topicRoute": "topicRoute -t {topic}",
    "topicRoute as a list": "topicRoute -t {topic} -l",
    "topicStatus": "topicStatus -t {topic}",
    "topicStatus of a cluster": f"topicStatus -t {{topic}} -c {CLUSTER}",
    "topicClusterList": "topicClusterList -t {topic}",
    "consumerProgress of a group": "consumerProgress -g {group}",
    "consumerProgress of a topic": "consumerProgress -g {group} -t {topic}",
    "consumerProgress with clients": "consumerProgress -g {group} -s true",
    "consumerProgress": "consumerProgress",
    "consumerConnection": "consumerConnection -g {group}",
    "consumerConnection at a broker": "consumerConnection -g {group} -b {broker}",
    "consumerStatus of a client": "consumerStatus -g {group} -i {client}",
    "producerConnection": "producerConnection -g driver-producers -t {topic}",
    "producer": "producer -b {broker}",
    "getConsumerConfig": "getConsumerConfig -g {group}",
    "brokerStatus": "brokerStatus -b {broker}",
    "brokerStatus of a cluster": f"brokerStatus -c {CLUSTER}",
    "brokerConsumeStats": "brokerConsumeStats -b {broker}",
    "brokerConsumeStats with lag": "brokerConsumeStats -b {broker} -l 1000000",
    "getBrokerConfig": "getBrokerConfig -b {broker}",
    "getBrokerConfig of a cluster": f"getBrokerConfig -c {CLUSTER}",
    "getNamesrvConfig": "getNamesrvConfig",
    "queryMsgById": "queryMsgById -t {topic} -i {id}",
    "queryMsgById with the body": "queryMsgById -t {topic} -i {id} -f UTF-8",
    "queryMsgByUniqueKey": "queryMsgByUniqueKey -t {topic} -i {id}",
    "queryMsgByUniqueKey all": "queryMsgByUniqueKey -t {topic} -i {id} -a",
    "queryMsgByKey": "queryMsgByKey -t {topic} -k key-1",
    "queryMsgByOffset": "queryMsgByOffset -t {topic} -b {name} -i 0 -o 0",
    "printMsg": "printMsg -t {topic}",
    "printMsg of a tag": "printMsg -t {topic} -s NoSuchTag",
    "printMsg without bodies": "printMsg -t {topic} -d false",
    "printMsgByQueue": "printMsgByQueue -t {topic} -a {name} -i 0 -p true -d true -f true",
    "consumeMessage": "consumeMessage -t {topic}",
    "consumeMessage of a queue": "consumeMessage -t {topic} -b {name} -i 0",
    "queryCq": "queryCq -t {topic} -q 0 -i 0",
    "queryCq with a group": "queryCq -t {topic} -q 0 -i 0 -c 2 -g {group} -b {broker}",
    "statsAll": "statsAll -t {topic}",
    "statsAll active": "statsAll -a -t {idle}",
    "haStatus": "haStatus -b {broker}",
    "updateOrderConf get": "updateOrderConf -m get -t {ordered}",
    "allocateMQ": "allocateMQ -t {idle} -i 10.0.0.1",
    "queryMsgTraceById": "queryMsgTraceById -i {traced}",
    "dumpCompactionLog": "dumpCompactionLog -f {log}",
}
# Verbs that run until they are stopped, and the first lines of ours.
ENDLESS = {
    f"clusterRT -c {CLUSTER} -a 2 -s 64": (
        r"#Cluster Name +#Broker Name +#RT +#successCount +#failCount",
        r"DefaultCluster +broker-\w+ +\d+\.\d\d +2 +0",
    ),
    "clusterRT -a 2 -p true -m room": (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\|room\|\w+\|[\w-]+\|\d+",),
    "startMonitoring": (r"\[MONITOR\] =+beginRound", r"\[MONITOR\] reportUndoneMsgs: .*"),
}

# Values that differ from run to run, and their placeholders.
NORMALISED: tuple[tuple[str, str], ...] = (
    (r" +\d+\.\d\d\(\d+,\d+ms(\|\w+,\w+ms)?\)", " TPS(LOAD)"),
    (r" +\d+-\d+\(\d+\.\dw, \d+\.\d, \d+\.\d\)", " TIMER"),
    (r" +\d+ +\d+\.\d\d +0\.\d{4} ", " PCWAIT HOURS SPACE "),
    # Their own connections, and rates that decay.
    (r"(?m)^(\S+ +\d+ +(?:V\S+ +\w+ +\w+|OFFLINE)) +\d+( +\d+)$", r"\1 TPS\2"),
    (r"(Put TPS: |Consume TPS: ).*", r"\1 RATE"),
    (r"(?m)^((?:\d+ +)?\S*driver\S*|.*@\S+)( +127.0.0.1):\d+", r"\1\2:PORT"),
    (r"lastUpdateTimestamp=\d+", "lastUpdateTimestamp=TIME"),
    (r"(Timestamp|TIMESTAMP)(=| *: )\d+", r"\1\2TIME"),
    (r"(?m)^(%RETRY%\S+|\S+)( +)[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +\d+$", r"\1 RATES"),
    (r"(?m)^(\S+ +\S+ +\d+) +[\d.]+ +[\d.]+ +(\d+) +(\d+)$", r"\1 RATES \2 \3"),
)
# Figures of a broker that change between two commands.
CHANGING = re.compile(
    r"(?m)^(\S+ +)?(\w*(?:Tps|TPS|Times|Times\w*|Queue\w*|Timestamp|TimeStamp|Ratio\S*|Capacity|"
    r"Distribute\w*|EntireMax|Total\w*|Memory\w*|runtime|Offset\w*|Size|Bytes|Mills|Count\w*|"
    r"\w*[bB]ehind\w*|lock\w*|Lock\w*)\S*) *: .*$"
)
# Lists that Java prints in the order of a hash table: the same lines in any order.
UNORDERED = (
    "topicList",
    "getNamesrvConfig",
    "getBrokerConfig",
    "consumerConnection",
    "consumerProgress",
    "consumerStatus",
    "brokerConsumeStats",
    "printMsg",
    "consumeMessage",
    "producer",
)


def is_consumed(progress: str) -> bool:
    """Whether a group has consumed all; without a line of a queue it has not committed yet."""
    return "Diff Total: 0\n" in progress and re.search(r" broker-\w+ +\d", progress) is not None


@dataclass(frozen=True)
class Scene:
    """A cluster with a topic, a group with one online consumer, and both tools."""

    site: Site
    driver: JavaDriver
    mqadmin: CommandLine
    words: dict[str, str]

    def official(self, command: str) -> str:
        verb, *rest = command.format(**self.words).split()
        return self.driver.admin(verb, "-n", self.site.namesrv, *rest)

    def ours(self, command: str) -> Result:
        verb, *rest = command.format(**self.words).split()
        return self.mqadmin(verb, "-n", self.site.namesrv, *rest)

    def run(self, command: str) -> str:
        """Ours; it must succeed."""
        result = self.ours(command)
        assert (result.code, result.err) == (0, ""), result
        return result.out


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDriver]:
    with JavaPeers("5.4.0", tmp_path_factory.mktemp("mqadmin")) as java:
        yield java.driver()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log file that RocketMQ wrote."""
    folder = tmp_path_factory.mktemp("log")
    with tarfile.open(GOLDEN / "clean-5.4.0.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return next(iter(sorted(folder.rglob("commitlog/0*"))))


@pytest.fixture(scope="module")
def scene(site: Site, driver: JavaDriver, log: Path) -> Iterator[Scene]:
    topic = site.create_topic("mqadmin", queues=2)
    idle = site.create_topic("mqadmin-idle", queues=1)
    ordered = site.create_topic("mqadmin-ordered", queues=1)
    group = site.new_group("mqadmin-group")
    (name,) = site.brokers
    driver.open_producer(f"producer-{name}", site.namesrv)
    ids = driver.send(f"producer-{name}", topic, MESSAGES, tag="TagA")
    driver.open_consumer(f"consumer-{name}", site.namesrv, topic, group=group)
    driver.receive(f"consumer-{name}", MESSAGES)
    words = {
        "topic": topic,
        "idle": idle,
        "ordered": ordered,
        "group": group,
        "id": ids[0],
        "name": name,
        "broker": site.broker.address,
    }
    scene = Scene(site, driver, CommandLine({}, program="mqadmin"), words)
    scene.run(f"updateOrderConf -m put -t {ordered} -v {name}:1")
    with Admin(site.namesrv) as admin:
        # A topic that only the name server knows, and an offset before which nothing was consumed.
        admin.delete_topic_in_broker(site.create_topic("mqadmin-routed"), name)
        behind = site.new_group("mqadmin-behind")
        admin.create_group(behind, cluster=CLUSTER)
        admin.update_consumer_offset(behind, MessageQueue(ordered, name, 0), 0)
    words["client"] = scene.run(f"consumerConnection -g {group}").splitlines()[1].split()[0]
    sent = scene.run("sendMessage -t {ordered} -p traced -m true")
    words["traced"] = re.findall(r"[0-9A-F]{32}", sent)[0]
    words["log"] = str(log)
    wait_until(lambda: bool(scene.ours("queryMsgTraceById -i {traced}").out), 30, "traced")
    wait_until(lambda: is_consumed(scene.run(f"consumerProgress -g {group}")), 30, "all committed")
    yield scene
    driver.close_consumer(f"consumer-{name}")
    driver.close_producer(f"producer-{name}")


def normalise(command: str, text: str) -> str:
    if command.startswith("brokerStatus"):
        text = CHANGING.sub(r"\1\2 CHANGING", text)
    for pattern, replacement in NORMALISED:
        text = re.sub(pattern, replacement, text)
    text = text.strip("\n")
    is_unordered = command.split(maxsplit=1)[0] in UNORDERED
    return "\n".join(sorted(text.splitlines())) if is_unordered else text


@pytest.mark.parametrize("command", READS)
def test_same_output_as_the_official_tool(scene: Scene, command: str) -> None:
    line = READS[command]
    expected = normalise(line, scene.official(line))
    assert expected
    assert "\tat " not in expected
    assert normalise(line, scene.run(line)) == expected


@pytest.mark.parametrize("command", ENDLESS)
def test_verbs_that_run_until_they_are_stopped(scene: Scene, command: str) -> None:
    words = [str(Path(sys.executable).with_name("mqadmin")), *command.split()]
    with subprocess.Popen(
        [*words, "-n", scene.site.namesrv],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # startMonitoring names groups of other tests that just left
        text=True,
    ) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        try:
            for expected in ENDLESS[command]:
                assert re.fullmatch(expected, process.stdout.readline().strip())
        finally:
            watchdog.cancel()
            process.terminate()
