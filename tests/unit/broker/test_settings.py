"""Configuration of a broker: RocketMQ's names and defaults, and what peers may change."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from goddard.broker.properties import IMPORTANT, JAVA_DEFAULTS
from goddard.broker.settings import BrokerConfig, Settings, local_path
from goddard.config import ProtectedPropertyError, parse_properties, read_properties, settings_of
from goddard.errors import ConfigError
from goddard.protocol.frame import decode_frame
from goddard.protocol.record import Host
from goddard.store.config import FlushMode

_GOLDEN = Path(__file__).parents[2] / "golden/data/wire/c5.4.0-s5.4.0/admin.jsonl.gz"
# Paths, names and sizes of the recorded broker.
_RECORDED = {
    "bitMapLengthConsumeQueueExt",
    "brokerName",
    "diskMaxUsedSpaceRatio",
    "enablePropertyFilter",
    "fileReservedTime",
    "haListenPort",
    "listenPort",
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "mappedFileSizeTimerLog",
    "maxHashSlotNum",
    "maxIndexNum",
    "namesrvAddr",
    "rocketmqHome",
    "storePathCommitLog",
    "storePathRootDir",
    "transactionCheckInterval",
    "transactionTimeOut",
}

_S4 = r"""
# master
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
deleteWhen=04
fileReservedTime=48
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
storePathRootDir=D:\RocketMQ\store
storePathCommitLog=D:\RocketMQ\store\commitlog
storePathConsumeQueue=D:\RocketMQ\store\consumequeue
storePathIndex=D:\RocketMQ\store\index
storeCheckpoint=D:\RocketMQ\store\checkpoint
abortFile=D:\RocketMQ\abort
"""


def recorded_properties() -> dict[str, str]:
    """What RocketMQ 5.4.0 answered to GET_BROKER_CONFIG."""
    asked: set[tuple[int, int]] = set()
    with gzip.open(_GOLDEN, "rt") as lines:
        for line in lines:
            entry = json.loads(line)
            key = (entry["conn"], entry["opaque"])
            if entry["dir"] == "c2s" and entry["code"] == 26:
                asked.add(key)
            elif entry["dir"] == "s2c" and key in asked:
                answer = decode_frame(memoryview(bytes.fromhex(entry["hex"]))[4:])
                return parse_properties(bytes(answer.body).decode())
    raise AssertionError("no answer to GET_BROKER_CONFIG is recorded")


def test_properties_and_defaults_are_those_of_rocketmq() -> None:
    recorded = recorded_properties()
    ours = BrokerConfig().properties()
    assert {name: value for name, value in recorded.items() if name not in _RECORDED} == {
        name: value for name, value in ours.items() if name not in _RECORDED
    }
    assert recorded.keys() - ours.keys() == {"namesrvAddr", "rocketmqHome", "storePathCommitLog"}
    assert ours.keys() <= recorded.keys()


def test_every_field_has_the_default_of_the_table() -> None:
    ours = BrokerConfig().properties()
    assert {name: ours[name] for name in JAVA_DEFAULTS} == JAVA_DEFAULTS
    assert ours["mappedFileSizeCommitLog"] == str(1 << 30)
    assert "brokerName" in IMPORTANT


def test_a_recorded_configuration_is_read_completely() -> None:
    recorded = recorded_properties()
    config = BrokerConfig.from_properties(recorded)
    assert config.properties() == recorded
    store = config.store_config()
    assert store.segment_bytes == 1_048_576
    assert store.index_slots == 1_000
    assert store.reserved_hours == 720
    # 95 % is above the ratio of forced deletion (85 %), so it replaces that ratio.
    assert (store.disk_high_ratio, store.disk_force_ratio, store.disk_full_ratio) == (
        0.85,
        0.85,
        0.9,
    )


def test_every_value_of_a_windows_file_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(_S4)
    shown = BrokerConfig.from_properties(read_properties(file)).properties()
    assert shown["storePathRootDir"] == "D:\\RocketMQ\\store"
    assert shown["abortFile"] == "D:\\RocketMQ\\abort"
    assert shown["storeCheckpoint"] == "D:\\RocketMQ\\store\\checkpoint"
    for line in _S4.splitlines():
        name, _, value = line.partition("=")
        if value:
            assert shown[name] == value


def test_expiry_of_queue_locks() -> None:
    name = "rocketmq.broker.rebalance.lockMaxLiveTime"
    assert BrokerConfig().queue_lock_ms == 60_000
    # A system property in Java: brokers do not show it.
    assert name not in BrokerConfig().properties()
    changed = BrokerConfig.from_properties({name: "5000"})
    assert changed.queue_lock_ms == 5_000
    assert changed.properties()[name] == "5000"
    for text in ("0", "-1", "5s", "9" * 20):
        with pytest.raises(ConfigError, match=f"{name}="):
            BrokerConfig.from_properties({name: text})


def test_windows_paths_become_local_paths() -> None:
    assert local_path("D:\\RocketMQ\\store") == Path("D:/RocketMQ/store")
    assert local_path("/var/store") == Path("/var/store")


def test_addresses_follow_the_configuration() -> None:
    config = BrokerConfig.from_properties(
        {
            "brokerIP1": "10.0.0.7",
            "listenPort": "20911",
            "namesrvAddr": " a:1 ;b:2;;a:1",
        }
    )
    assert config.broker_address == "10.0.0.7:20911"
    assert config.store_host == Host.parse("10.0.0.7:20911")
    assert config.properties()["haListenPort"] == "20912"
    assert config.vip_port == 20909
    assert config.name_servers == ("a:1", "b:2")
    assert BrokerConfig().name_servers == ()


@pytest.mark.parametrize(("period", "seconds"), [("1", 10), ("30000", 30), ("600000", 60)])
def test_the_register_period_has_limits(period: str, seconds: int) -> None:
    config = BrokerConfig.from_properties({"registerNameServerPeriod": period})
    assert config.register_seconds == seconds


def test_store_properties_are_applied() -> None:
    store = BrokerConfig.from_properties(
        {
            "storePathRootDir": "/data",
            "flushDiskType": "SYNC_FLUSH",
            "mappedFileSizeConsumeQueue": "101",
            "diskMaxUsedSpaceRatio": "60",
            "maxMessageSize": "1000",
            "accessMessageInMemoryMaxRatio": "30",
        }
    ).store_config()
    assert store.root == Path("/data")
    assert store.flush_mode is FlushMode.SYNC
    assert store.queue_file_bytes == 120
    assert store.disk_high_ratio == 0.6
    assert store.max_message_bytes == 1000
    assert store.memory_percent == 30


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("listenPort", "70000"),
        ("listenPort", "many"),
        ("autoCreateTopicEnable", "yes"),
        ("flushDiskType", "SOMETIMES"),
        ("brokerRole", "BOSS"),
        ("brokerName", ""),
        ("brokerName", "n" * 200),
        ("messageDelayLevel", "1s soon"),
        ("mappedFileSizeCommitLog", "-1"),
        ("diskMaxUsedSpaceRatio", "much"),
        ("defaultTopicQueueNums", "0"),
        ("storePathCommitLog", "/one,/two"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        BrokerConfig.from_properties({name: text})


# CVE-2023-33246 and CVE-2023-37582 set a home, a script's parameter or a path from the network.
@pytest.mark.parametrize(
    "name",
    [
        "rocketmqHome",
        "rocketmqhome",
        "RocketmqHome ",
        "filterServerNums.script",
        "storePathRootDir",
        "storePathCommitLog",
        "brokerConfigPath",
        "configBlackList",
        "configblacklist",
        "kvConfigPath",
        "bindAddress",
        "listenPort",
        "haListenPort",
        "haMasterAddress",
        "namesrvAddr",
        "controllerAddr",
        "messageStorePlugIn",
        "metricsPromExporterHost",
        "metricsGrpcExporterTarget",
        "socksProxyConfig",
        "brokerName",
        "brokerId",
        "brokerIP1",
        "brokerRole",
        "tls.server.keyPath",
        "useTLS",
        "rocketmqHom\u0435",  # a Cyrillic letter
    ],
)
def test_a_peer_cannot_set_paths_addresses_or_names(name: str) -> None:
    config = BrokerConfig()
    with pytest.raises(ProtectedPropertyError):
        config.updated_by_peer({"fileReservedTime": "24", name: "-c $@|sh . echo x"})
    with pytest.raises(ProtectedPropertyError):
        config.updated_by_peer({name: "1"})


def test_a_peer_can_set_numbers_and_switches() -> None:
    changes = {
        "fileReservedTime": "24",
        "cleanFileForciblyEnable": "false",
        "deleteWhen": "05",
        "brokerPermission": "4",
        "autoCreateTopicEnable": "false",
        "sendMessageThreadPoolNums": "9",
        "storeReplyMessageEnable": "false",
        "messageDelayLevel": "1s 2s",
    }
    changed = BrokerConfig().updated_by_peer(changes)
    shown = changed.properties()
    assert {name: shown[name] for name in changes} == changes
    assert not changed.auto_create_topic
    assert not changed.is_writable
    assert changed.is_readable
    assert changed.store_config().reserved_hours == 24


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fileReservedTime", "/etc/passwd"),
        ("fileReservedTime", "1\nrocketmqHome=/tmp"),
        ("cleanFileForciblyEnable", "perhaps"),
        ("regionId", "a\nrocketmqHome=/tmp"),
        ("deleteWhen", "noon"),
        ("sendMessageThreadPoolNums", "$(id)"),
    ],
)
def test_a_peer_cannot_set_invalid_values(name: str, text: str) -> None:
    with pytest.raises(ConfigError):
        BrokerConfig().updated_by_peer({name: text})


@pytest.mark.parametrize("text", ["-5", "0", "99999999999"])
def test_messages_cannot_be_kept_for_less_than_an_hour(text: str) -> None:
    for read in (BrokerConfig().updated_by_peer, BrokerConfig.from_properties):
        with pytest.raises(ConfigError, match=f"^fileReservedTime={text}: a number from 1 to 876"):
            read({"fileReservedTime": text})


@pytest.mark.parametrize("text", ["99", "24", "04;25", "-1", "noon"])
def test_files_are_deleted_at_hours_of_the_day(text: str) -> None:
    for read in (BrokerConfig().updated_by_peer, BrokerConfig.from_properties):
        with pytest.raises(ConfigError, match=f"^deleteWhen={text}: hours 00 to 23 are needed$"):
            read({"deleteWhen": text})


@pytest.mark.parametrize(
    ("text", "hours"), [("04", {4}), ("01;02", {1, 2}), ("0;9; 23;", {0, 9, 23})]
)
def test_hours_of_rocketmqs_files(text: str, hours: set[int]) -> None:
    changed = BrokerConfig().updated_by_peer({"deleteWhen": text, "fileReservedTime": "120"})
    assert changed.store_config().delete_hours() == hours


def test_properties_unknown_to_rocketmq_are_ignored_from_a_peer() -> None:
    config = BrokerConfig()
    assert config.updated_by_peer({"noSuchProperty": "1"}) == config


def test_every_setting_has_one_property() -> None:
    names = list(settings_of(BrokerConfig))
    assert len(names) == len(set(names))
    assert set(names).isdisjoint(BrokerConfig().unused_properties)


async def test_a_change_is_saved_and_listeners_are_called(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    settings = Settings(BrokerConfig(config_path=str(file)))
    notified: list[BrokerConfig] = []
    settings.add_listener(notified.append)
    await settings.update({"fileReservedTime": "24"}, "peer", now_ms=7)
    assert [config.unused_properties["fileReservedTime"] for config in notified] == ["24"]
    assert settings.current is notified[0]
    assert settings.data_version.counter == 1
    assert settings.data_version.timestamp == 7
    assert read_properties(file) == settings.current.properties()
    assert "fileReservedTime=24\n" in settings.shown()

    await settings.update({"fileReservedTime": "24"}, "peer", now_ms=8)
    assert settings.data_version.counter == 1  # nothing changed


async def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    settings = Settings(BrokerConfig(config_path=str(file)))
    await asyncio.gather(
        settings.update({"fileReservedTime": "24"}, "one", now_ms=1),
        settings.update({"deleteWhen": "06"}, "other", now_ms=1),
    )
    kept = read_properties(file)
    assert (kept["fileReservedTime"], kept["deleteWhen"]) == ("24", "06")


async def test_a_refused_change_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    config = BrokerConfig(config_path=str(file))
    settings = Settings(config)
    with pytest.raises(ConfigError):
        await settings.update({"fileReservedTime": "24", "rocketmqHome": "x"}, "peer", now_ms=1)
    assert settings.current is config
    assert not file.exists()


async def test_a_change_that_cannot_be_written_does_not_take_effect(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = BrokerConfig(config_path=str(tmp_path / "file" / "broker.conf"))
    settings = Settings(config)
    with pytest.raises(OSError, match="file"):
        await settings.update({"fileReservedTime": "24"}, "peer", now_ms=1)
    assert settings.current is config


UNSUPPORTED = [
    "aclEnable=true",
    "authenticationEnabled=true",
    "authorizationEnabled=TRUE",
    "enableControllerMode=true",
    "enableDLegerCommitLog=true",
    "allAckInSyncStateSet=true",
    "defaultMessageRequestMode=POP",
    "enableLmq=true",
    "enableMultiDispatch=true",
    "messageIndexEnable=false",
    "metricsExporterType=PROM",
    "metricsExporterType=2",
    "recallMessageEnable=true",
    "messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore",
    "storeType=defaultRocksDB",
    "tls.enable=true",
    "tls.server.mode=enforcing",
    "tls.server.need.client.auth=require",
    "useTLS=true",
]


@pytest.mark.parametrize(
    "line",
    ["metricsExporterType=DISABLE", "metricsExporterType=0", "defaultMessageRequestMode=PULL"],
)
def test_settings_that_ask_for_nothing_more_are_accepted(line: str) -> None:
    BrokerConfig.from_properties(parse_properties(line)).check_supported()


@pytest.mark.parametrize("name", ["fetchNamesrvAddrByAddressServer", "fetchNameSrvAddrByDnsLookup"])
def test_name_servers_have_to_be_given(name: str) -> None:
    asked = {name: "true"}
    with pytest.raises(ConfigError, match=f"{name}=true is not supported yet: .*set namesrvAddr"):
        BrokerConfig.from_properties(asked).check_supported()
    BrokerConfig.from_properties(asked | {"namesrvAddr": "127.0.0.1:9876"}).check_supported()
    BrokerConfig.from_properties({name: "false"}).check_supported()


@pytest.mark.parametrize("line", UNSUPPORTED)
def test_unsupported_settings_are_refused(line: str) -> None:
    config = BrokerConfig.from_properties(parse_properties(line))
    with pytest.raises(ConfigError, match=f"{line} is not supported yet: .* would .*; remove the"):
        config.check_supported()
    with pytest.raises(ConfigError):
        BrokerConfig().updated_by_peer(parse_properties(line))


@pytest.mark.parametrize(
    "line",
    [
        "aclEnable=false",
        "storeType=default",
        "tls.server.mode=disabled",
        "inSyncReplicas=1",
        "minInSyncReplicas=1",
        "messageStorePlugIn=",
    ],
)
def test_values_that_disable_unsupported_features_are_accepted(line: str) -> None:
    BrokerConfig.from_properties(parse_properties(line)).check_supported()


def test_refused_properties_are_known_and_errors_list_the_choices() -> None:
    assert BrokerConfig().unknown_names(["authenticationEnabled", "flushDiskType"]) == []
    with pytest.raises(ConfigError, match="'SYNC'; SYNC_FLUSH or ASYNC_FLUSH"):
        BrokerConfig.from_properties({"flushDiskType": "SYNC"})


def test_bulk_reads_are_limited_by_a_property() -> None:
    config = BrokerConfig.from_properties({"maxTransferBytesOnBulkRead": "0"})
    assert config.store_config().max_bulk_read_bytes == 0
    assert BrokerConfig().store_config().max_bulk_read_bytes == 1 << 20
