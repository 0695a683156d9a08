"""Our ``mqadmin`` and the official one about users, rules and controllers, at RocketMQ 5.4.0."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.guarded import BROKER, CLUSTER, Guarded, guarded_legacy_cluster
from tests.support.java import JavaPeers
from tests.support.mqadmin_twins import BothTools, Case, check_twins

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

NEW_USER = "createUser -b {broker} -u {twin} -p secret"
NEW_ACL = "createAcl -b {broker} -s User:{twin} -r Topic:orders -a Pub -d Allow -i 127.0.0.1"
CASES: dict[str, Case] = {
    "createUser": Case(
        f"createUser -c {CLUSTER} -u {{twin}} -p secret -t Super",
        after="getUser -b {broker} -u {twin}",
    ),
    "updateUser": Case(
        "updateUser -b {broker} -u {twin} -s disable",
        before=(NEW_USER,),
        after="getUser -b {broker} -u {twin}",
    ),
    "deleteUser": Case(
        "deleteUser -b {broker} -u {twin}",
        before=(NEW_USER,),
        after="listUser -b {broker} -f {twin}",
    ),
    "getUser": Case("getUser -b {broker} -u {twin}", before=(NEW_USER,)),
    "listUser": Case(f"listUser -c {CLUSTER} -f {{twin}}", before=(NEW_USER,)),
    "copyUser": Case("copyUser -f {broker} -t {broker} -u {twin}", before=(NEW_USER,)),
    "createAcl": Case(
        "createAcl -b {broker} -s User:{twin} -r Topic:orders,Group:g -a Pub,Sub -d Allow "
        "-i 127.0.0.1",
        before=(NEW_USER,),
        after="getAcl -b {broker} -s User:{twin}",
    ),
    "updateAcl": Case(
        f"updateAcl -c {CLUSTER} -s User:{{twin}} -r Topic:orders -a Sub -d Deny -i 127.0.0.1",
        before=(NEW_USER, NEW_ACL),
        after="getAcl -b {broker} -s User:{twin}",
    ),
    "deleteAcl": Case(
        "deleteAcl -b {broker} -s User:{twin} -r Topic:orders",
        before=(NEW_USER, NEW_ACL),
        after="listAcl -b {broker} -s User:{twin}",
    ),
    "getAcl": Case("getAcl -b {broker} -s User:{twin}", before=(NEW_USER, NEW_ACL)),
    "listAcl": Case(f"listAcl -c {CLUSTER} -s User:{{twin}}", before=(NEW_USER, NEW_ACL)),
    "copyAcl": Case("copyAcl -f {broker} -t {broker} -s User:{twin}", before=(NEW_USER, NEW_ACL)),
    "getBrokerEpoch": Case(f"getBrokerEpoch -b {BROKER}"),
    "getSyncStateSet": Case(f"getSyncStateSet -a {{controller}} -b {BROKER}"),
    "getControllerMetaData": Case("getControllerMetaData -a {controller}"),
    "getControllerConfig": Case("getControllerConfig -a {controller}", is_sorted=True),
    "updateControllerConfig": Case(
        "updateControllerConfig -a {controller} -k scanNotActiveBrokerInterval -v 6000"
    ),
    "electMaster": Case(
        f"electMaster -a {{controller}} -b 1 -bn {BROKER} -c {CLUSTER}",
        refused_by={"5.4.0": "still alive"},
    ),
    "cleanBrokerMetadata": Case(
        f"cleanBrokerMetadata -a {{controller}} -bn {BROKER} -c {CLUSTER}",
        refused_by={"5.4.0": "alive"},
    ),
}
NEW_ACCOUNT = "updateAclConfig -b {broker} -a {twin} -s 12345678"
LEGACY_CASES: dict[str, Case] = {
    "updateAclConfig": Case(
        "updateAclConfig -b {broker} -a {twin} -s 12345678 -t orders=PUB -g g=SUB -w 10.0.0.*"
    ),
    "deleteAclConfig": Case("deleteAclConfig -b {broker} -a {twin}", before=(NEW_ACCOUNT,)),
    "updateGlobalWhiteAddr": Case("updateGlobalWhiteAddr -b {broker} -g 127.0.0.1,10.1.1.1"),
    "getAclConfig": Case("getAclConfig -b {broker}"),
    "clusterAclConfigVersion": Case(f"clusterAclConfigVersion -c {CLUSTER}"),
}


@pytest.fixture(scope="module")
def tools(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BothTools]:
    """Both read the keys of root from tools.yml."""
    with JavaPeers("5.4.0", tmp_path_factory.mktemp("mqadmin")) as java:
        driver = java.driver()
        (home,) = (java.directory / "java-5.4.0").glob("driver-*")
        (home / "conf" / "tools.yml").write_text("accessKey: root\nsecretKey: root-secret\n")
        mqadmin = CommandLine({"ROCKETMQ_HOME": str(home)}, program="mqadmin")
        words = {"broker": guarded.broker, "controller": guarded.controller}
        yield BothTools(guarded.namesrv, driver, mqadmin, words)


@pytest.mark.parametrize("name", CASES)
def test_same_as_the_official_tool(tools: BothTools, name: str) -> None:
    case = CASES[name]
    check_twins(*tools.twins(), case, (case.refused_by or {}).get("5.4.0"))


@pytest.fixture(scope="module")
def legacy_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BothTools]:
    directory: Path = tmp_path_factory.mktemp("guarded-legacy")
    with (
        guarded_legacy_cluster(directory / "cluster") as cluster,
        JavaPeers("4.9.4", directory / "tools") as java,
    ):
        words = {"broker": cluster.broker}
        mqadmin = CommandLine({}, program="mqadmin")
        yield BothTools(cluster.namesrv, java.driver(), mqadmin, words)


@pytest.mark.parametrize("name", LEGACY_CASES)
def test_same_as_the_official_tool_of_4_9(legacy_tools: BothTools, name: str) -> None:
    check_twins(*legacy_tools.twins(), LEGACY_CASES[name], None)
