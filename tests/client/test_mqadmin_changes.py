"""Verbs of our ``mqadmin`` that change something, for both kinds of clusters.

The official tool of 5.4.0 runs each command on one topic or group, ours on a twin of it. Both must
print the same, and the official tool must show the same state of both afterwards. If the cluster
refuses a verb, ours prints one line.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.testing.process import wait_until
from goddard.testing.site import Site
from tests.support.command_line import CommandLine
from tests.support.java import JavaDriver, JavaPeers
from tests.support.mqadmin_twins import BothTools, Case, check_twins

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

CLUSTER = "DefaultCluster"


NEW_TOPIC = f"updateTopic -c {CLUSTER} -t {{twin}} -r 2 -w 2"
NEW_GROUP = f"updateSubGroup -c {CLUSTER} -g {{twin}}"
ONLY_JAVA = {"goddard": "not support"}
BOTH = {"goddard": "not support", "java": "not support"}

CASES: dict[str, Case] = {
    "updateTopic": Case(
        f"updateTopic -c {CLUSTER} -t {{twin}} -r 3 -w 2", after="topicRoute -t {twin}"
    ),
    "updateTopic at a broker": Case(
        "updateTopic -b {broker} -t {twin} -p 4 -a +message.type=FIFO", after="topicRoute -t {twin}"
    ),
    "updateTopicList": Case(
        f"updateTopicList -c {CLUSTER} -f {{topics}}", after="topicRoute -t {twin}"
    ),
    "deleteTopic": Case(
        f"deleteTopic -c {CLUSTER} -t {{twin}}", before=(NEW_TOPIC,), after="topicRoute -t {twin}"
    ),
    "updateTopicPerm": Case(
        f"updateTopicPerm -c {CLUSTER} -t {{twin}} -p 4",
        before=(NEW_TOPIC,),
        after="topicRoute -t {twin}",
    ),
    "updateSubGroup": Case(
        f"updateSubGroup -c {CLUSTER} -g {{twin}} -s true -q 2 -r 3",
        after="getConsumerConfig -g {twin}",
    ),
    "updateSubGroupList": Case(
        f"updateSubGroupList -c {CLUSTER} -f {{groups}}", after="getConsumerConfig -g {twin}"
    ),
    "deleteSubGroup": Case(
        f"deleteSubGroup -c {CLUSTER} -g {{twin}} -r true",
        before=(NEW_GROUP,),
        after="getConsumerConfig -g {twin}",
    ),
    "setConsumeMode": Case(
        f"setConsumeMode -c {CLUSTER} -t {{topic}} -g {{twin}} -m POP -q 2",
        before=(NEW_GROUP,),
        refused_by=ONLY_JAVA,
    ),
    "resetOffsetByTime": Case(
        "resetOffsetByTime -t {topic} -g {twin} -s -1 -b {broker} -q 0 -o 2",
        before=(NEW_GROUP,),
        after="consumerProgress -g {twin} -t {topic}",
    ),
    "skipAccumulatedMessage": Case(
        "skipAccumulatedMessage -t {topic} -g {twin}",
        before=(NEW_GROUP,),
        after="consumerProgress -g {twin} -t {topic}",
    ),
    "cloneGroupOffset": Case(
        "cloneGroupOffset -s {group} -d {twin} -t {topic}",
        before=(NEW_GROUP,),
        after="consumerProgress -g {twin} -t {topic}",
    ),
    "sendMessage": Case(
        "sendMessage -t {twin} -p hello -k key -c TagA -b {name} -i 1",
        before=(NEW_TOPIC,),
        after="topicStatus -t {twin}",
    ),
    "sendMsgStatus": Case("sendMsgStatus -b {name} -s 64 -c 3"),
    "checkMsgSendRT": Case("checkMsgSendRT -t {twin} -a 3 -s 64", before=(NEW_TOPIC,)),
    "updateOrderConf": Case(
        "updateOrderConf -m put -t {twin} -v {name}:1", after="updateOrderConf -m get -t {twin}"
    ),
    "updateBrokerConfig": Case("updateBrokerConfig -b {broker} -k defaultQueryMaxNum -v 31"),
    "cleanExpiredCQ": Case("cleanExpiredCQ -b {broker}"),
    "deleteExpiredCommitLog": Case("deleteExpiredCommitLog -b {broker}"),
    "cleanUnusedTopic": Case("cleanUnusedTopic -b {broker}"),
    "updateNamesrvConfig": Case("updateNamesrvConfig -k waitSecondsForService -v 45"),
    "updateKvConfig": Case("updateKvConfig -s TWIN -k {twin} -v value"),
    "deleteKvConfig": Case(
        "deleteKvConfig -s TWIN -k {twin}", before=("updateKvConfig -s TWIN -k {twin} -v v",)
    ),
    "wipeWritePerm": Case("wipeWritePerm -b {name}"),
    "addWritePerm": Case("addWritePerm -b {name}", after="topicRoute -t {topic}"),
    "exportMetadata": Case(f"exportMetadata -c {CLUSTER} -f {{folder}}/{{twin}}"),
    "exportMetadata of topics": Case("exportMetadata -b {broker} -t -f {folder}/{twin}"),
    "exportConfigs": Case(f"exportConfigs -c {CLUSTER} -f {{folder}}/{{twin}}"),
    "exportMetrics": Case(f"exportMetrics -c {CLUSTER} -f {{folder}}/{{twin}}"),
    "updateColdDataFlowCtrGroupConfig": Case(
        "updateColdDataFlowCtrGroupConfig -b {broker} -g {twin} -v 1024", refused_by=ONLY_JAVA
    ),
    "getColdDataFlowCtrInfo": Case("getColdDataFlowCtrInfo -b {broker}", refused_by=ONLY_JAVA),
    "removeColdDataFlowCtrGroupConfig": Case(
        "removeColdDataFlowCtrGroupConfig -b {broker} -g {twin}", refused_by=ONLY_JAVA
    ),
    "setCommitLogReadAheadMode": Case(
        "setCommitLogReadAheadMode -b {broker} -m 0", refused_by=ONLY_JAVA
    ),
    "switchTimerEngine": Case("switchTimerEngine -b {broker} -e F", refused_by=ONLY_JAVA),
    "resetMasterFlushOffset": Case("resetMasterFlushOffset -b {broker} -o 0"),
    "getBrokerEpoch": Case(
        "getBrokerEpoch -b {name}",
        refused_by={"goddard": "not support", "java": "only for controllerMode"},
    ),
    "getSyncStateSet": Case("getSyncStateSet -a {broker} -b {name}", refused_by=BOTH),
    "getControllerMetaData": Case("getControllerMetaData -a {broker}", refused_by=BOTH),
    "getControllerConfig": Case("getControllerConfig -a {broker}", refused_by=BOTH),
    "updateControllerConfig": Case("updateControllerConfig -a {broker} -k x -v y", refused_by=BOTH),
    "electMaster": Case(
        "electMaster -a {broker} -b 0 -bn {name} -c DefaultCluster", refused_by=BOTH
    ),
    "cleanBrokerMetadata": Case(
        "cleanBrokerMetadata -a {broker} -bn {name} -c DefaultCluster", refused_by=BOTH
    ),
    "addBroker": Case("addBroker -c {broker} -b broker.conf", refused_by=BOTH),
    "removeBroker": Case("removeBroker -c {broker} -b DefaultCluster:{name}:1", refused_by=BOTH),
    "rocksDBConfigToJson": Case(
        "rocksDBConfigToJson -n {namesrv} -c DefaultCluster -t topics", refused_by=ONLY_JAVA
    ),
    "checkRocksdbCqWriteProgress": Case(
        "checkRocksdbCqWriteProgress -n {namesrv} -c DefaultCluster -t {topic}",
        refused_by=ONLY_JAVA,
    ),
    "exportPopRecord": Case("exportPopRecord -b {broker}", refused_by=ONLY_JAVA),
    # Last: the official tool cannot read the topics of RocketMQ's broker if one is static.
    "updateStaticTopic": Case(
        "updateStaticTopic -t {twin} -qn 3 -b {name}",
        after="topicRoute -t {twin}",
        refused_by=ONLY_JAVA,
    ),
    "remappingStaticTopic": Case(
        "remappingStaticTopic -t {twin} -b {name}",
        before=("updateStaticTopic -t {twin} -qn 3 -b {name}",),
        after="topicRoute -t {twin}",
        refused_by={"goddard": "there is no topic"},
    ),
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDriver]:
    with JavaPeers("5.4.0", tmp_path_factory.mktemp("mqadmin")) as java:
        yield java.driver()


@pytest.fixture(scope="module")
def tools(site: Site, driver: JavaDriver, tmp_path_factory: pytest.TempPathFactory) -> BothTools:
    topic, group = site.create_topic("twins", queues=1), site.new_group("twins")
    (name,) = site.brokers
    words = {
        "topic": topic,
        "group": group,
        "name": name,
        "broker": site.broker.address,
        "namesrv": site.namesrv,
        "folder": str(tmp_path_factory.mktemp("exports")),
    }
    tools = BothTools(site.namesrv, driver, CommandLine({}, program="mqadmin"), words)
    driver.open_producer(f"twins-{name}", site.namesrv)
    driver.send(f"twins-{name}", topic, 5)
    driver.close_producer(f"twins-{name}")
    driver.open_consumer(f"twins-{name}", site.namesrv, topic, group=group)
    driver.receive(f"twins-{name}", 5)
    driver.close_consumer(f"twins-{name}")
    wait_until(
        lambda: re.search(
            r" broker-\w+ +\d(?s:.*)Diff Total: 0\n",
            tools.ours("consumerProgress -g {group} -t {topic}").out,
        ),
        30,
        "all committed",
    )
    return tools


def with_files(tools: BothTools, folder: Path) -> BothTools:
    """With files of the settings of the twin, for the verbs that read them."""
    twin = tools.words["twin"]
    topics, groups = folder / f"{twin}-topics.json", folder / f"{twin}-groups.json"
    topics.write_text(json.dumps([{"topicName": twin, "readQueueNums": 3, "writeQueueNums": 3}]))
    groups.write_text(json.dumps([{"groupName": twin, "retryMaxTimes": 4}]))
    return tools.with_words(topics=str(topics), groups=str(groups))


@pytest.mark.parametrize("name", CASES)
def test_a_change_by_ours_is_that_of_the_official_tool(
    tools: BothTools, name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    kind = "goddard" if "goddard" in tools.words["name"] else "java"
    reference, subject = (with_files(twin, tmp_path) for twin in tools.twins())
    check_twins(reference, subject, case, (case.refused_by or {}).get(kind))


# Access control, which test_mqadmin_guarded.py runs at RocketMQ, and files that ours cannot read.
MISSING = {
    "createUser": "createUser -b {broker} -u ann -p secret",
    "updateUser": "updateUser -b {broker} -u ann -s disable",
    "deleteUser": "deleteUser -b {broker} -u ann",
    "getUser": "getUser -b {broker} -u ann",
    "listUser": "listUser -b {broker}",
    "copyUser": "copyUser -f {broker} -t {broker}",
    "createAcl": "createAcl -b {broker} -s User:ann -r Topic:a -a Pub -d Allow -i 127.0.0.1",
    "updateAcl": "updateAcl -b {broker} -s User:ann -r Topic:a -a Pub -d Allow -i 127.0.0.1",
    "deleteAcl": "deleteAcl -b {broker} -s User:ann",
    "getAcl": "getAcl -b {broker} -s User:ann",
    "listAcl": "listAcl -b {broker}",
    "copyAcl": "copyAcl -f {broker} -t {broker}",
    "updateAclConfig": "updateAclConfig -b {broker} -a ann -s 12345678",
    "deleteAclConfig": "deleteAclConfig -b {broker} -a ann",
    "clusterAclConfigVersion": f"clusterAclConfigVersion -c {CLUSTER}",
    "updateGlobalWhiteAddr": "updateGlobalWhiteAddr -b {broker} -g 10.0.0.1",
    "getAclConfig": "getAclConfig -b {broker}",
    "exportMetadataInRocksDB": "exportMetadataInRocksDB -p {folder} -t topics",
}


@pytest.mark.parametrize("site", ["goddard"], indirect=True)
@pytest.mark.parametrize("verb", MISSING)
def test_a_missing_feature_is_one_line(tools: BothTools, verb: str) -> None:
    result = tools.ours(MISSING[verb])
    assert (result.code, result.out) == (1, "")
    assert result.err.count("\n") == 1
    assert "not support" in result.err or "RocksDB files cannot be read" in result.err
