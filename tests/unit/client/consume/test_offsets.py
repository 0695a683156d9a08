"""Offsets in memory, and in RocketMQ's local file."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from goddard.client.consume.offsets import (
    MAX_FILE_BYTES,
    BrokerOffsets,
    LocalOffsets,
    read_offsets,
    write_offsets,
)
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError, RemotingError
from goddard.protocol.frame import RemotingCommand

ONE = MessageQueue("T", "broker-a", 0)
TWO = MessageQueue("T", "broker-a", 1)
OTHER = MessageQueue("U", "broker-a", 0)

# As the clients write it: fastjson's pretty format with objects as keys; standard JSON in no way.
WRITTEN_BY_JAVA = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":1,
\t\t\t"topic":"T"
\t\t}:12,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"U"
\t\t}:3
\t}
}"""


def offsets(folder: Path) -> LocalOffsets:
    return LocalOffsets("10.0.0.1@DEFAULT", "G", folder=folder)


def path_of(folder: Path) -> Path:
    return folder / "10.0.0.1@DEFAULT" / "G" / "offsets.json"


def put(folder: Path, content: bytes, suffix: str = "") -> Path:
    path = path_of(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(path.name + suffix).write_bytes(content)
    return path


# --- Memory ---------------------------------------------------------------------------------------


def test_updates_go_anywhere_or_only_up(tmp_path: Path) -> None:
    kept = offsets(tmp_path)
    assert kept.cached(ONE) is None
    kept.update(ONE, 5)
    kept.update(ONE, 3, increase_only=True)
    assert kept.cached(ONE) == 5
    kept.update(ONE, 3)
    assert kept.cached(ONE) == 3
    kept.update(ONE, 4, increase_only=True)
    kept.update(OTHER, 1, increase_only=True)
    assert kept.table() == {ONE: 4, OTHER: 1}
    assert kept.table("U") == {OTHER: 1}


def test_a_frozen_offset_stays_until_it_is_forgotten(tmp_path: Path) -> None:
    kept = offsets(tmp_path)
    kept.update(ONE, 9)
    kept.freeze(ONE, 4)
    kept.update(ONE, 10, increase_only=True)
    kept.update(ONE, 10)
    assert kept.cached(ONE) == 4
    kept.forget(ONE)
    assert kept.cached(ONE) is None
    kept.update(ONE, 10)
    assert kept.cached(ONE) == 10


# --- The file -------------------------------------------------------------------------------------


async def test_what_java_wrote_is_read(tmp_path: Path) -> None:
    put(tmp_path, WRITTEN_BY_JAVA)
    kept = offsets(tmp_path)
    await kept.load()
    assert kept.table() == {TWO: 12, OTHER: 3}
    assert await kept.read(TWO) == 12
    assert await kept.read(ONE) is None


async def test_offsets_are_merged_into_the_file(tmp_path: Path) -> None:
    path = put(tmp_path, WRITTEN_BY_JAVA)
    kept = offsets(tmp_path)
    assert kept.path == path
    kept.update(ONE, 7)
    kept.update(TWO, 13)
    await kept.persist(ONE)
    assert read_offsets(path) == {ONE: 7, TWO: 12, OTHER: 3}
    await kept.persist_all([ONE, TWO])
    assert read_offsets(path) == {ONE: 7, TWO: 13, OTHER: 3}
    # The content before the last write.
    assert read_offsets(path.with_name("offsets.json.bak")) == {ONE: 7, TWO: 12, OTHER: 3}
    again = offsets(tmp_path)
    await again.load()
    assert again.table() == {ONE: 7, TWO: 13, OTHER: 3}


async def test_a_first_write_makes_the_folders(tmp_path: Path) -> None:
    kept = offsets(tmp_path / "new" / "folder")
    await kept.load()
    await kept.persist_all([ONE])
    assert not kept.path.exists()
    kept.update(ONE, 1)
    await kept.persist_all([ONE])
    assert kept.path.read_bytes() == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:1}}'
    )


async def test_writes_at_the_same_time_do_not_lose_each_other(tmp_path: Path) -> None:
    kept = offsets(tmp_path)
    queues = [MessageQueue("T", "b", number) for number in range(20)]
    for number, queue in enumerate(queues):
        kept.update(queue, number)
    await asyncio.gather(*(kept.persist(queue) for queue in queues))
    assert read_offsets(kept.path) == kept.table()


@pytest.mark.parametrize("content", [b"", b"{", b'{"offsetTable":[]}', b"\xff\xfe", b"null"])
async def test_the_backup_is_read_if_the_file_is_damaged(tmp_path: Path, content: bytes) -> None:
    path = put(tmp_path, content)
    put(tmp_path, WRITTEN_BY_JAVA, ".bak")
    assert read_offsets(path) == {TWO: 12, OTHER: 3}
    path.unlink()
    assert read_offsets(path) == {TWO: 12, OTHER: 3}


async def test_damage_of_file_and_backup_raises_and_overwrites_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path, b"{")
    put(tmp_path, b"}", ".bak")
    kept = offsets(tmp_path)
    with pytest.raises(ConfigError, match="remove both to start as a new group"):
        await kept.load()
    kept.update(ONE, 1)
    with caplog.at_level(logging.WARNING):
        await kept.persist(ONE)
        assert await kept.read(TWO) is None
    assert "nor its backup can be read" in caplog.text
    with pytest.raises(ConfigError, match="nor its backup"):
        await kept.flush([ONE])
    assert path.read_bytes() == b"{"


def test_without_files_there_are_no_offsets(tmp_path: Path) -> None:
    assert read_offsets(path_of(tmp_path)) == {}


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = put(tmp_path, b" " * (MAX_FILE_BYTES + 1))
    put(tmp_path, WRITTEN_BY_JAVA, ".bak")
    assert read_offsets(path) == {TWO: 12, OTHER: 3}


def test_odd_names_survive(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    odd = {MessageQueue('a"b\\c', "größe", 2): 2**62, MessageQueue("T", "b", 0): 0}
    write_offsets(path, odd)
    assert read_offsets(path) == odd


async def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    kept = offsets(tmp_path)
    kept.path.with_name("offsets.json.tmp").mkdir(parents=True)
    kept.update(ONE, 1)
    with pytest.raises(ConfigError, match="cannot be written: Is a directory; make the folder"):
        await kept.flush([ONE])
    # Once in a while is tried again.
    await kept.persist_all([ONE])
    kept.path.with_name("offsets.json.tmp").rmdir()
    await kept.persist_all([ONE])
    assert read_offsets(kept.path) == {ONE: 1}


@pytest.mark.parametrize("client_id", ["a/b", "..", "", "a\0b"])
def test_a_client_id_that_leaves_the_folder_is_refused(tmp_path: Path, client_id: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a folder name"):
        LocalOffsets(client_id, "G", folder=tmp_path)


def test_the_usual_folder() -> None:
    assert LocalOffsets("c", "G").path == (
        Path.home() / ".rocketmq_offsets" / "c" / "G" / "offsets.json"
    )


class Broker:
    """Takes offsets."""

    def __init__(self) -> None:
        self.written: dict[int, int] = {}
        self.is_away = False

    async def locate(self, *_: object, **__: object) -> tuple[str, bool]:
        return "127.0.0.1:10911", False

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        if self.is_away:
            raise RemotingError("away")
        self.written[int(command.fields["queueId"])] = int(command.fields["commitOffset"])


async def test_the_offset_of_a_released_queue_is_written_beside_a_persist_of_all() -> None:
    broker = Broker()
    kept = BrokerOffsets(cast("Any", broker), "G")
    kept.update(ONE, 5)
    kept.update(TWO, 6)
    # As a consumer does that gives one up while its time to write all offsets comes.
    giving_up = asyncio.create_task(kept.persist(ONE))
    await kept.persist_all([TWO])
    await giving_up
    assert broker.written == {0: 5, 1: 6}


async def test_an_unreachable_broker_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    kept = BrokerOffsets(cast("Any", broker), "G")
    kept.update(ONE, 5)
    for is_away in (True, True, False, True, True):
        broker.is_away = is_away
        await kept.persist_all([ONE])
    told = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.getMessage().rpartition("could not be ")[2] for each in told] == [
        "written: away"
    ] * 2


async def test_an_unreachable_broker_is_logged_again_for_a_queue_that_came_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker()
    broker.is_away = True
    kept = BrokerOffsets(cast("Any", broker), "G")
    for _ in range(2):
        kept.update(ONE, 5)
        await kept.persist(ONE)
        kept.forget(ONE)
    assert [each.levelno for each in caplog.records] == [logging.WARNING] * 2


class ForgetfulBroker(Broker):
    """As RocketMQ's: who finds no table of a topic makes one, and may do so beside another."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, dict[int, int]] = {}
        self.most_at_once = self._at_once = 0

    async def call(self, address: str, command: RemotingCommand, _: int) -> RemotingCommand:
        fields = command.fields
        table = self.tables.get(fields["topic"])
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(0)
        self._at_once -= 1
        if table is None:
            table = self.tables[fields["topic"]] = {}
        table[int(fields["queueId"])] = int(fields["commitOffset"])
        return RemotingCommand(0)


@pytest.mark.parametrize("way", ["flush", "persist_all"])
async def test_first_offsets_are_not_sent_at_the_same_time(way: str) -> None:
    broker = ForgetfulBroker()
    kept = BrokerOffsets(cast("Any", broker), "G")
    queues = [MessageQueue(topic, "broker-a", number) for number in range(5) for topic in "AB"]
    for queue in queues:
        kept.update(queue, queue.queue_id)
    if way == "flush":
        await kept.flush(queues)
    else:
        await kept.persist_all(queues, wait=True)
    assert broker.tables == {topic: {number: number for number in range(5)} for topic in "AB"}
    # Nor one by one.
    assert broker.most_at_once == 8


AT_EXIT = """
import sys
from pathlib import Path
from goddard.client.blocking.loop import shared_loop
from goddard.client.consume.offsets import LocalOffsets
from goddard.client.values import MessageQueue

async def stop():
    offsets = LocalOffsets("client", "group", folder=Path(sys.argv[1]))
    await offsets.load()
    offsets.update(MessageQueue("T", "broker-a", 0), 7)
    await offsets.persist_all([MessageQueue("T", "broker-a", 0)])

shared_loop.acquire("client", stop)
# The end of the program: from here on Python starts no threads.
"""


def test_offsets_are_kept_when_the_program_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    path = tmp_path / "client" / "group" / "offsets.json"
    assert read_offsets(path) == {MessageQueue("T", "broker-a", 0): 7}
