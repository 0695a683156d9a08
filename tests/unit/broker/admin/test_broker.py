"""Administration of the broker: configuration, statistics, deletion of unused queues."""

import gzip
import json
from pathlib import Path

import pytest

from goddard.broker.admin.broker import size_text
from goddard.config import parse_properties
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import FrameDecoder, decode_frame
from tests.support.admin_harness import AdminHarness, body_of

UPDATE = RequestCode.UPDATE_BROKER_CONFIG
READ = RequestCode.GET_BROKER_CONFIG
RUNTIME = RequestCode.GET_BROKER_RUNTIME_INFO
STATS = RequestCode.VIEW_BROKER_STATS_DATA
GOLDEN = Path(__file__).parents[3] / "golden" / "data" / "wire" / "c5.4.0-s5.4.0"


def golden_runtime_info() -> dict[str, str]:
    """What RocketMQ 5.4.0 answered to GET_BROKER_RUNTIME_INFO."""
    with gzip.open(GOLDEN / "admin.jsonl.gz") as lines:
        for line in lines:
            frame = json.loads(line)
            if frame["note"].startswith("answer to GET_BROKER_RUNTIME_INFO"):
                (data,) = FrameDecoder().feed(bytes.fromhex(frame["hex"]))
                table: dict[str, str] = body_of(decode_frame(data))["table"]
                return table
    raise AssertionError("no such frame")


class TestConfiguration:
    async def test_a_change_takes_effect_and_reads_back(self, tmp_path: Path) -> None:
        config_file = tmp_path / "broker.conf"
        properties = {"brokerConfigPath": str(config_file)}
        with AdminHarness(tmp_path, properties=properties) as harness:
            admin = harness.connect()
            body = b"waitTimeMillsInSendQueue=300\nslaveTimeout=4000\nnoSuchProperty=1\n"
            answer = await admin.ask(UPDATE, {}, body)
            assert (answer.code, answer.remark) == (0, None)
            assert harness.settings.current.wait_in_send_queue_ms == 300
            answer = await admin.ask(READ)
            shown = parse_properties(bytes(answer.body).decode())
            assert shown["waitTimeMillsInSendQueue"] == "300"
            assert shown["slaveTimeout"] == "4000"
            assert "noSuchProperty" not in shown
            assert json.loads(answer.fields["version"]) == {
                "counter": 1,
                "stateVersion": 0,
                "timestamp": harness.clock.now_ms(),
            }
            kept = parse_properties(config_file.read_text())
            assert kept["waitTimeMillsInSendQueue"] == "300"
            assert (await admin.ask(UPDATE)).code == 0  # an empty body changes nothing

    async def test_a_change_of_permission_increments_the_version_of_the_topics(
        self, tmp_path: Path
    ) -> None:
        with AdminHarness(tmp_path) as harness:
            admin = harness.connect()
            version = harness.topics.data_version.counter
            assert (await admin.ask(UPDATE, {}, b"traceOn=false")).code == 0
            assert harness.topics.data_version.counter == version
            assert (await admin.ask(UPDATE, {}, b"brokerPermission=4")).code == 0
            assert harness.topics.data_version.counter == version + 1
            assert not harness.settings.current.is_writable

    @pytest.mark.parametrize(
        "body",
        [
            # CVE-2023-33246: commands within the properties that start the filter server.
            b"filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch /tmp/pwned;\n",
            b"rocketmqHome=/tmp/x",
            # Later attacks: the path of the configuration file, and its content.
            b"brokerConfigPath=/var/spool/cron/root\naclEnable=* * * * * id",
            b"brokerConfigPath=/tmp/x",
            b"configBlackList=",
            b"configBlackList=a\nbrokerConfigPath=/tmp/x",
            b"brokerConfigPath =/tmp/x",
            b"\\u0062rokerConfigPath=/tmp/x",
            b"broker\\\nConfigPath=/tmp/x",
            b"BrokerConfigPath=/tmp/x",
            # Paths of data and addresses of peers.
            b"storePathRootDir=/tmp/x",
            b"storePathCommitLog=/tmp/x",
            b"storePathDLedgerCommitLog=/tmp/x",
            b"namesrvAddr=192.0.2.1:9876",
            b"rmqAddressServerDomain=192.0.2.1",
            b"bindAddress=0.0.0.0",
            b"listenPort=1",
            b"haListenPort=1",
            b"brokerIP1=192.0.2.1",
            b"brokerName=other",
            b"brokerClusterName=other",
            b"brokerRole=SLAVE",
            b"authConfigPath=/tmp/x",
            b"messageStorePlugIn=java.lang.Runtime",
            # One forbidden property: the whole update is refused.
            b"traceOn=false\nrocketmqHome=/tmp/x",
        ],
    )
    async def test_forbidden_properties_are_refused(self, tmp_path: Path, body: bytes) -> None:
        config_file = tmp_path / "broker.conf"
        with AdminHarness(tmp_path, properties={"brokerConfigPath": str(config_file)}) as harness:
            before = harness.settings.current
            answer = await harness.connect().ask(UPDATE, {}, body)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert (answer.remark or "").startswith("Can not update config in black list.")
            assert harness.settings.current == before
            assert not config_file.exists()

    @pytest.mark.parametrize(
        "body",
        [
            b"waitTimeMillsInSendQueue=soon",
            b"waitTimeMillsInSendQueue=99999999999999",
            b"brokerPermission=-1",
            b"traceOn=perhaps",
            b"messageDelayLevel=1s;rm",
            b"regionId=a\\nrocketmqHome=/tmp/x",
            b"regionId=\\u000arocketmqHome=/tmp/x",
            b"x=\\uZZZZ",
            b"\xff\xfe",
            b"a=b\n" * 300_000,
        ],
    )
    async def test_invalid_values_are_refused(self, tmp_path: Path, body: bytes) -> None:
        with AdminHarness(tmp_path) as harness:
            before = harness.settings.current
            answer = await harness.connect().ask(UPDATE, {}, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark
            assert harness.settings.current == before

    async def test_a_file_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        properties = {"brokerConfigPath": str(tmp_path / "file" / "broker.conf")}
        with AdminHarness(tmp_path, properties=properties) as harness:
            before = harness.settings.current
            answer = await harness.connect().ask(UPDATE, {}, b"traceOn=false")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "was not stored" in (answer.remark or "")
            assert harness.settings.current == before


class TestRuntimeInfo:
    async def test_it_has_the_names_of_rocketmq(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.delay_table.commit(1, 3)
            harness.delay_table.commit(18, 0)
            table = body_of(await harness.connect().ask(RUNTIME))["table"]
            places = ("commitLogDiskRatio_",)
            expected = {name for name in golden_runtime_info() if not name.startswith(places)}
            assert {name for name in table if not name.startswith(places)} == expected
            assert f"commitLogDiskRatio_{tmp_path / 'store' / 'commitlog'}" in table

    async def test_values(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            stored_ms = harness.clock.now_ms()
            harness.put("T", b"1", b"2")
            harness.put("SCHEDULE_TOPIC_XXXX", b"3", queue_id=2)
            harness.delay_table.commit(3, 1)
            harness.figures.put("T", 2, 200)
            harness.figures.get("T", "G", 1, 100)
            harness.figures.appended(2, 17)
            harness.figures.failed(3)
            harness.clock.advance(((26 * 60 + 1) * 60 + 5) * 1000)
            table = body_of(await harness.connect().ask(RUNTIME))["table"]
            end = harness.store.log_max_offset
            for name, value in {
                "bootTimestamp": stored_ms,
                "runtime": "[ 1 days, 2 hours, 1 minutes, 5 seconds ]",
                "msgPutTotalTodayNow": 2,
                "msgGetTotalTodayNow": 1,
                "putMessageTimesTotal": 3,
                "putMessageSizeTotal": end,
                "putMessageAverageSize": end / 3,
                "commitLogMinOffset": 0,
                "commitLogMaxOffset": end,
                "earliestMessageTimeStamp": stored_ms,
                "scheduleMessageOffset_3": "1,1",
                "brokerVersionDesc": "V5_4_0",
                "sendThreadPoolQueueCapacity": 10_000,
                "dispatchBehindBytes": 0,
                "putTps": "  ",
                "putMessageEntireTimeMax": 17,
                "putMessageFailedTimes": 3,
                "putMessageDistributeTime": "null",
                "sendThreadPoolQueueSize": 0,
            }.items():
                assert table[name] == str(value), name
            assert 0 < float(table["commitLogDiskRatio"]) <= 1
            assert table["commitLogDirCapacity"].startswith("Total : ")

    async def test_an_empty_store(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            table = body_of(await harness.connect().ask(RUNTIME))["table"]
            assert table["earliestMessageTimeStamp"] == "-1"
            assert table["putMessageAverageSize"] == "0.0"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1024.0 KiB"),
        (252 * 1024**3, "252.0 GiB"),
        (2**63 - 1, "8.0 EiB"),
    ],
)
def test_sizes(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


async def test_statistics(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        harness.figures.put("T", 6, 600)
        harness.figures.sample(0, 1)
        admin = harness.connect()
        fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
        assert body_of(await admin.ask(STATS, fields))["statsMinute"] == {
            "avgpt": 6.0,
            "sum": 6,
            "tps": 0.6,
        }
        for changes in ({"statsKey": "X"}, {"statsName": "NO_SUCH"}, {"statsKey": "@"}):
            answer = await admin.ask(STATS, fields | changes)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (answer.remark or "").startswith("The stats <")
        assert (await admin.ask(STATS, {"statsKey": "T"})).code == ResponseCode.SYSTEM_ERROR


class TestCleaning:
    async def test_queues_of_deleted_topics(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.add_topic("T")
            for topic in ("T", "Unused", "SCHEDULE_TOPIC_XXXX", "%LMQ%x"):
                harness.put(topic, b"1")
            answer = await harness.connect().ask(RequestCode.CLEAN_UNUSED_TOPIC)
            assert (answer.code, answer.remark) == (0, None)
            assert {topic: harness.store.max_offset(topic, 0) for topic in ("T", "Unused")} == {
                "T": 1,
                "Unused": 0,
            }
            assert harness.store.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 1
            assert harness.store.max_offset("%LMQ%x", 0) == 1

    async def test_queues_without_remaining_messages(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path, segment_bytes=4096) as harness:
            harness.put("Old", bytes(3000))
            for _ in range(4):
                harness.put("New", bytes(3000))
            harness.store.flush()
            harness.clock.jump(50 * 365 * 86_400_000)  # files are dated by the machine's clock
            admin = harness.connect()
            assert (await admin.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
            assert harness.store.log_min_offset > 0
            assert (await admin.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
            assert harness.store.queue_entries("Old", 0, 0, 1) is None
            assert harness.store.max_offset("New", 0) == 4


async def test_request_modes(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        admin = harness.connect()
        modes = body_of(await admin.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE))
        assert modes == {"messageRequestModeMap": {}}
        for code in (RequestCode.QUERY_ASSIGNMENT, RequestCode.SET_MESSAGE_REQUEST_MODE):
            answer = await admin.ask(code)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
