"""A store directory moves back and forth between our store and official brokers.

Our store writes (and stops, or is killed), a Java broker starts on the directory, and the official
client reads every message and finds them by key and by id. Java appends more, and our store opens
the directory again. Nothing is converted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from goddard.protocol.bodies import TopicConfig
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.protocol.compression import decompress
from goddard.protocol.ids import UniqueIds, offset_message_id
from goddard.protocol.message import decode_properties, encode_properties
from goddard.protocol.record import Host, decode_record
from goddard.store.check.inspect import StoreView
from goddard.store.check.verify import verify
from goddard.store.config import StoreConfig
from goddard.store.errors import StoreLockedError
from goddard.store.log.records import prepare_record
from goddard.store.store import MessageStore
from goddard.store.tables import ConsumerOffsetTable, SubscriptionGroupTable, TopicTable
from goddard.testing.ports import lease_port
from goddard.testing.process import ProcessError, wait_until
from tests.support.java import BROKER_PROPERTIES, JavaBroker, JavaDriver, JavaPeers
from tests.support.store_writer import Notes, Order, running_writer, unique_key

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

TOPIC = "HandOver"
QUEUES = 3
GROUP = "HandOverReaders"
COMMITTED = {0: 5, 1: 7, 2: 0}
OURS, JAVAS = 120, 40


@dataclass(frozen=True)
class Known:
    """A message that must exist from now on."""

    unique_key: str
    key: str
    body: bytes | None
    message_id: str


class HandOver:
    """One directory, and every message that was acknowledged in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known: dict[str, Known] = {}
        self.port = lease_port(-2, 1)
        self._ids = UniqueIds(bytes((127, 0, 0, 1)), 4711, 0x600D)

    def config(self) -> StoreConfig:
        return StoreConfig.from_properties(self.root, BROKER_PROPERTIES)

    def write_tables(self) -> None:
        """Write the tables that our broker would have saved beside the messages."""
        topics = TopicTable(self.root / "config")
        topics.load()
        topics.put(
            TOPIC, TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        )
        topics.save()
        groups = SubscriptionGroupTable(self.root / "config")
        groups.load()
        groups.put(GROUP, SubscriptionGroupConfig(group_name=GROUP))
        groups.save()
        offsets = ConsumerOffsetTable(self.root / "config")
        offsets.load()
        for queue_id, offset in COMMITTED.items():
            offsets.commit(GROUP, TOPIC, queue_id, offset)
        offsets.save()

    def check_tables(self) -> None:
        """Check that the broker that read our tables saved them with the same content."""
        offsets = ConsumerOffsetTable(self.root / "config")
        offsets.load()
        assert offsets.offsets(GROUP, TOPIC) == COMMITTED
        topics = TopicTable(self.root / "config")
        topics.load()
        topic = topics.get(TOPIC)
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums) == (QUEUES, QUEUES)
        assert len(topics) > 5, "the broker adds its own topics"
        groups = SubscriptionGroupTable(self.root / "config")
        groups.load()
        assert GROUP in groups

    def append(self, count: int, *, stage: str) -> None:
        """Our store appends messages and stops cleanly."""
        with MessageStore(self.config()) as store:
            host = Host.parse(f"127.0.0.1:{self.port}")
            now_ms = store.log.last_store_timestamp_ms or 1_700_000_000_000
            records, names = [], []
            for number in range(count):
                name = self._ids.next(max(now_ms, 1))
                key = f"{stage}-{number}"
                names.append((name, key))
                properties = {"KEYS": f"{key} {stage}", "TAGS": f"Tag{number % 3}"}
                records.append(
                    prepare_record(
                        topic=TOPIC,
                        queue_id=number % QUEUES,
                        body=f"{stage} message {number} ✓".encode() * (number % 9 + 1),
                        properties=encode_properties({**properties, "UNIQ_KEY": name}),
                        born_timestamp_ms=now_ms,
                        born_host=host,
                        store_host=host,
                        flag=number,
                    )
                )
            entries = store.put_many(records[: count // 2])
            entries += store.put_batch(records[count // 2 :])
            for entry, (name, key) in zip(entries, names, strict=True):
                raw = store.lookup(entry.physical_offset)
                assert raw is not None
                body = decode_record(raw)[0].body
                message_id = offset_message_id(host, entry.physical_offset)
                self.known[name] = Known(name, key, body, message_id)
        # All files for Java are complete on disk, including the key index.
        assert verify(StoreView(self.root)).damages == []

    def crash(self, directory: Path, count: int) -> None:
        """Our store appends messages in a process that is killed."""
        order = Order(
            root=str(self.root),
            notes=str(directory / "notes"),
            flush="ASYNC_FLUSH",
            topic=TOPIC,
            count=count,
            sizes={
                "segment_bytes": self.config().segment_bytes,
                "queue_file_bytes": self.config().queue_file_bytes,
                "index_slots": self.config().index_slots,
                "index_entries": self.config().index_entries,
            },
        )
        with running_writer(directory / "writer.log") as writer:
            writer.run(order)
        notes = Notes.read(Path(order.notes))
        assert notes.is_all
        assert len(notes.acknowledged) == count
        assert StoreView(self.root).has_abort
        for number, (_, _, physical_offset) in notes.acknowledged.items():
            message_id = offset_message_id(Host.parse("127.0.0.1:10911"), physical_offset)
            name = unique_key(number)
            self.known[name] = Known(name, f"key{number}", None, message_id)

    def check_with_ours(self) -> None:
        """Check that everything exists once, by offset, key and id, and that the store is clean."""
        with MessageStore(self.config()) as store:
            found: dict[str, int] = {}
            for queue_id in range(QUEUES):
                low, high = store.min_offset(TOPIC, queue_id), store.max_offset(TOPIC, queue_id)
                offset = low
                while offset < high:
                    result = store.get(TOPIC, queue_id, offset, 32)
                    for raw in result.records:
                        record, _ = decode_record(raw)
                        name = decode_properties(record.properties)["UNIQ_KEY"]
                        assert name not in found, f"{name} is stored twice"
                        found[name] = record.physical_offset
                        known = self.known.get(name)
                        if known is not None and known.body is not None:
                            assert decompress(record.body, record.sys_flag, 1 << 24) == known.body
                    assert result.next_offset > offset
                    offset = result.next_offset
            assert self.known.keys() <= found.keys()
            for name in self.known:
                offsets = {
                    decode_record(raw)[0].physical_offset
                    for raw in store.query(TOPIC, name, 32).records
                }
                assert found[name] in offsets
        report = verify(StoreView(self.root))
        assert [each for each in report.damages if not each.is_notice] == []


class JavaTurn:
    """A Java broker on the directory, with the official client beside it."""

    def __init__(self, peers: JavaPeers, hand_over: HandOver, name: str) -> None:
        self._peers = peers
        self._hand_over = hand_over
        self._name = name
        self.namesrv = peers.start_name_server(f"namesrv-{name}")
        self.broker: JavaBroker = peers.start_broker(
            f"broker-{name}",
            namesrv=self.namesrv.address,
            store_dir=hand_over.root,
            port=hand_over.port,
        )
        self.driver: JavaDriver = peers.driver()

    def check(self) -> None:
        """The official client reads everything, and finds some messages by key and id."""
        known = self._hand_over.known
        self.wait_for_route()
        self.driver.open_consumer("reader", self.namesrv.address, TOPIC, group=f"R{self._name}")
        received = self.driver.receive("reader", len(known), timeout=60)
        assert set(known) <= set(received)
        assert len(received) == len(set(received))
        self.driver.close_consumer("reader")
        for each in list(known.values())[:: max(len(known) // 4, 1)]:
            if not each.key:  # sent by Java's client: it has a unique id
                self.find(each, "queryMsgByUniqueKey", "-t", TOPIC, "-i", each.unique_key)
                continue
            self.find(each, "queryMsgByKey", "-t", TOPIC, "-k", each.key)
            # mqadmin 5.x needs the topic, too; 4.9 has no such option.
            topic = () if self._peers.version.startswith("4.") else ("-t", TOPIC)
            self.find(each, "queryMsgById", "-i", self.reachable(each.message_id), *topic)

    def find(self, message: Known, *query: str) -> None:
        """mqadmin has a timeout of some seconds, which can be too short on a busy machine.

        It then says "no message" (208), the same as when there is none. After a kill Java enters
        the last records into the index by and by, too.
        """
        wait_until(lambda: message.unique_key in self.admin(*query), 45, " ".join(query))

    def wait_for_route(self) -> None:
        wait_until(
            lambda: "brokerDatas" in self.admin("topicRoute", "-t", TOPIC),
            30,
            "the broker's topics at the name server",
        )

    def reachable(self, message_id: str) -> str:
        """The id with the address that this broker listens on."""
        host = Host.parse(f"127.0.0.1:{self._hand_over.port}")
        return offset_message_id(host, int(message_id[-16:], 16))

    def admin(self, *arguments: str) -> str:
        return self.driver.admin(*arguments, "-n", self.namesrv.address)

    def append(self, count: int) -> None:
        self.driver.open_producer("writer", self.namesrv.address)
        for name in self.driver.send("writer", TOPIC, count, tag="TagJava"):
            self._hand_over.known[name] = Known(name, "", None, "")
        self.driver.close_producer("writer")

    def end(self, *, kill: bool = False) -> None:
        if kill:
            self.broker.kill()
        else:
            self.broker.stop()
        self.driver.close()
        self.namesrv.kill()


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[dict[str, JavaPeers]]:
    with JavaPeers("5.4.0", tmp_path) as java540, JavaPeers("4.9.4", tmp_path) as java494:
        yield {"5.4.0": java540, "4.9.4": java494}


def test_three_hand_overs(peers: dict[str, JavaPeers], tmp_path: Path) -> None:
    hand_over = HandOver(tmp_path / "store")
    hand_over.write_tables()
    hand_over.append(OURS, stage="first")

    turn = JavaTurn(peers["5.4.0"], hand_over, "one")
    turn.check()
    turn.append(JAVAS)
    with pytest.raises(StoreLockedError):
        MessageStore(hand_over.config()).open()
    live = verify(StoreView(hand_over.root))
    assert live.is_running
    assert live.is_clean, live.damages
    turn.end()

    hand_over.check_tables()
    hand_over.check_with_ours()
    hand_over.append(OURS, stage="second")
    turn = JavaTurn(peers["4.9.4"], hand_over, "two")
    turn.check()
    turn.append(JAVAS)
    turn.end()

    hand_over.check_tables()
    hand_over.check_with_ours()
    hand_over.append(OURS, stage="third")
    turn = JavaTurn(peers["5.4.0"], hand_over, "three")
    turn.check()
    turn.append(JAVAS)
    turn.end()
    hand_over.check_with_ours()
    assert len(hand_over.known) == 3 * (OURS + JAVAS)


@pytest.mark.parametrize("version", ["5.4.0", "4.9.4"])
def test_hand_over_after_kill_both_ways(
    peers: dict[str, JavaPeers], tmp_path: Path, version: str
) -> None:
    hand_over = HandOver(tmp_path / "store")
    hand_over.write_tables()
    hand_over.crash(tmp_path, OURS)
    turn = JavaTurn(peers[version], hand_over, "killed")
    turn.check()
    turn.append(JAVAS)
    turn.end(kill=True)
    assert StoreView(hand_over.root).has_abort
    hand_over.check_with_ours()


@pytest.mark.parametrize("version", ["5.4.0", "4.9.4"])
def test_java_does_not_start_on_a_directory_that_our_store_has_locked(
    peers: dict[str, JavaPeers], tmp_path: Path, version: str
) -> None:
    hand_over = HandOver(tmp_path / "store")
    with MessageStore(hand_over.config()), pytest.raises(ProcessError, match=r"(?i)lock"):
        peers[version].start_broker("refused", store_dir=hand_over.root, port=hand_over.port)
