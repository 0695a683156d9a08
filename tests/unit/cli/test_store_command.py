"""``goddard store`` for people and scripts: output, JSON and exit codes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from goddard.cli.commands import goddard
from goddard.cli.render import bytes_text, time_text
from goddard.store.errors import StoreLayoutError
from tests.support.store import SmallStore, prepared


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    small = SmallStore(root, segment_bytes=4096, queue_file_bytes=400)
    with small as store:
        for number in range(30):
            small.clock.advance(1000)
            store.put(
                prepared(
                    "Orders" if number % 3 else "Bills",
                    number % 2,
                    f"body {number} ✓".encode(),
                    tags="Paid",
                    keys=f"key{number}",
                )
            )
    return root


def run(*arguments: object) -> Result:
    return CliRunner().invoke(goddard, ["store", *map(str, arguments)])


def run_json(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


def run_lines(*arguments: object) -> list[Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_info(root: Path) -> None:
    facts = run_json("info", root)
    assert facts["state"] == {"abort": False, "lockHolder": None}
    queues = {(each["topic"], each["queueId"]): each["maxOffset"] for each in facts["queues"]}
    assert queues == {("Bills", 0): 5, ("Bills", 1): 5, ("Orders", 0): 10, ("Orders", 1): 10}
    assert facts["log"]["maxOffset"] > 3000
    assert sum(each["entries"] for each in facts["index"]) == 60
    text = run("info", root).stdout
    assert "Commit log" in text
    assert "Orders" in text
    assert "lock free" in text


def test_verify_clean_and_damaged(root: Path) -> None:
    clean = run("verify", root)
    assert clean.exit_code == 0
    assert "no damage found" in clean.stdout
    assert "30 records" in clean.stdout
    flip(root / "commitlog" / ("0" * 20), 90)
    damaged = run("verify", root)
    assert damaged.exit_code == 1
    assert f"DAMAGE bad-crc: commitlog/{'0' * 20} at byte 0 (log offset 0)" in damaged.stdout
    assert "what to do:" in damaged.stdout
    assert "1 damage found" in damaged.stdout
    report = run_json("verify", root)
    assert not report["clean"]
    assert [(each["kind"], each["position"]) for each in report["damages"]] == [("bad-crc", 0)]
    assert run("verify", root, "--no-crc").exit_code == 0


def test_verify_prints_at_most_limit_damages(root: Path) -> None:
    for number in range(5):
        flip(root / "consumequeue" / "Orders" / "0" / ("0" * 20), 20 * number + 7)
    result = run("verify", root, "--limit", 2)
    assert result.exit_code == 1
    assert result.stdout.count("DAMAGE") == 2
    assert "more; --limit shows them" in result.stdout


def test_usage_errors_exit_with_2(tmp_path: Path, root: Path) -> None:
    for arguments in (
        ("verify",),
        ("verify", tmp_path / "missing"),
        ("info", tmp_path),
        ("dump", root, "--what", "nonsense"),
        ("repair", root, "--yes"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2, arguments
    assert not (tmp_path / "copy").exists()
    (root / "consumequeue" / "CURRENT").write_text("MANIFEST")
    result = run("verify", root)
    assert result.exit_code == 2
    assert "RocksDB" in result.output


def test_a_wrong_directory_is_reported_in_one_line(tmp_path: Path) -> None:
    for directory in (tmp_path / "none", tmp_path):
        result = run("info", directory)
        assert result.exit_code == 2
        assert result.output.startswith(f"Error: {directory} is not a")
        assert len(result.output.splitlines()) == 1


def test_a_system_error_is_reported_in_one_line(root: Path) -> None:
    shutil.rmtree(root / "index")
    (root / "index").write_text("not a directory")
    result = run("info", root)
    assert result.exit_code == 1
    assert result.output == f"Error: {root / 'index'}: Not a directory\n"


@pytest.mark.parametrize("size", [0, 10])
def test_an_index_file_without_a_header(root: Path, tmp_path: Path, size: int) -> None:
    """As after a crash between the creation of the file and its first write."""
    stump = root / "index" / "20991231235959999"
    stump.write_bytes(bytes(size))
    assert run_json("info", root)["index"][-1]["entries"] == 0
    assert [each["file"] for each in run_json("verify", root)["damages"]] == [f"index/{stump.name}"]
    assert run("repair", root, "--yes", "--copy-to", tmp_path / "copy").exit_code == 0
    assert not stump.exists()
    assert run("verify", root).exit_code == 0


def test_dump_records(root: Path) -> None:
    records = run_lines("dump", root, "--limit", 0, "--body", "text")
    assert len(records) == 30
    assert records[7]["body"] == "body 7 ✓"
    assert records[7]["properties"] == {"TAGS": "Paid", "KEYS": "key7"}
    assert records[7]["messageId"].endswith(f"{records[7]['physicalOffset']:016X}")
    bills = run_lines("dump", root, "--topic", "Bills", "--queue", 1)
    assert [each["queueOffset"] for each in bills] == [0, 1, 2, 3, 4]
    start, stop = records[3]["physicalOffset"], records[6]["physicalOffset"]
    part = run_lines("dump", root, "--from", start, "--to", stop, "--body", "hex")
    assert [bytes.fromhex(each["body"]).decode() for each in part] == [
        "body 3 ✓",
        "body 4 ✓",
        "body 5 ✓",
    ]
    assert len(run_lines("dump", root, "--limit", 4)) == 4
    text = run("dump", root, "--limit", 1, "--body", "text").stdout
    assert "topic: Bills" in text
    assert "body: body 0 ✓" in text


def test_dump_queue_and_index_entries(root: Path) -> None:
    records = {each["physicalOffset"]: each for each in run_lines("dump", root)}
    entries = run_lines("dump", root, "--what", "queue", "--topic", "Orders", "--queue", 0)
    assert [each["queueOffset"] for each in entries] == list(range(10))
    for each in entries:
        record = records[each["physicalOffset"]]
        assert (record["topic"], record["queueOffset"]) == ("Orders", each["queueOffset"])
    some = run_lines("dump", root, "--what", "queue", "--from", 3, "--to", 5)
    assert [each["queueOffset"] for each in some] == [3, 4] * 4
    index = run_lines("dump", root, "--what", "index", "--limit", 0)
    assert len(index) == 60
    assert {each["physicalOffset"] for each in index} == records.keys()


def test_dump_lists_damaged_records_with_an_error(root: Path) -> None:
    flip(root / "commitlog" / ("0" * 20), 90)
    assert "CRC" in run_lines("dump", root, "--limit", 1)[0]["error"]


def test_repair_copies_then_rebuilds(root: Path, tmp_path: Path) -> None:
    flip(root / "consumequeue" / "Orders" / "0" / ("0" * 20), 7)
    shutil.rmtree(root / "consumequeue" / "Bills")
    damaged = {
        path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    assert run("verify", root).exit_code == 1
    result = run("repair", root, "--copy-to", tmp_path / "copy", "--yes")
    assert result.exit_code == 0, result.output
    assert "rebuilt queues and index from 30 records" in result.stdout
    assert run("verify", root).exit_code == 0
    facts = run_json("info", root)
    queues = {(each["topic"], each["queueId"]): each["maxOffset"] for each in facts["queues"]}
    assert queues == {("Bills", 0): 5, ("Bills", 1): 5, ("Orders", 0): 10, ("Orders", 1): 10}
    for path, content in damaged.items():
        assert (tmp_path / "copy" / path).read_bytes() == content


def test_repair_without_a_copy_does_nothing(root: Path, tmp_path: Path) -> None:
    flip(root / "consumequeue" / "Orders" / "0" / ("0" * 20), 7)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    result = run("repair", root, "--copy-to", tmp_path / "full", "--yes")
    assert result.exit_code == 1
    assert "exists already" in result.output
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_repair_cuts_the_middle_only_with_the_option(root: Path, tmp_path: Path) -> None:
    flip(root / "commitlog" / ("0" * 20), 90)
    result = run("repair", root, "--copy-to", tmp_path / "one", "--yes")
    assert result.exit_code == 1
    assert "--cut-corrupt" in result.output
    result = run("repair", root, "--copy-to", tmp_path / "two", "--yes", "--cut-corrupt", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["cutBytes"] > 3000
    assert all(Path(path).stat().st_size for path in report["cutFiles"])
    assert run("verify", root).exit_code == 0


def test_sizes_and_times_for_people() -> None:
    assert [bytes_text(count) for count in (0, 1023, 1024, 1536, 1 << 30, 1 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "1.0 GiB",
        "1024.0 TiB",
    ]
    assert time_text(1_700_000_000_123) == "2023-11-14 22:13:20.123Z"
    assert time_text(0) == "-"
    assert time_text(1 << 62) == str(1 << 62)


def test_repair_extends_a_truncated_log_file(root: Path, tmp_path: Path) -> None:
    with SmallStore(root, segment_bytes=4096) as store:
        store.put_many([prepared() for _ in range(12)])
    last = max((root / "commitlog").iterdir())
    os.truncate(last, 700)
    damages = run_json("verify", root)["damages"]
    assert any(each["kind"] == "file-size" and last.name in each["file"] for each in damages)
    result = run("repair", root, "--copy-to", tmp_path / "copy", "--yes")
    assert result.exit_code == 0, result.output
    assert f"extended {last} to its full size of 4096 bytes" in result.stdout.replace("\n", "")
    assert run("verify", root).exit_code == 0
    with SmallStore(root, segment_bytes=4096) as store:
        assert store.report.findings == []


@pytest.mark.parametrize("asked", [True, False])
def test_repair_of_a_single_truncated_log_file(tmp_path: Path, asked: bool) -> None:
    root = tmp_path / "store"
    size = 65536 if asked else 1 << 30
    with SmallStore(root, segment_bytes=size) as store:
        end = store.put_many([prepared() for _ in range(50)])[-1].end_offset
    (last,) = (root / "commitlog").iterdir()
    os.truncate(last, 5000)
    assert end > 5000
    assert "file-size" in run("verify", root).stdout
    with pytest.raises(StoreLayoutError, match=f"goddard store repair .* --segment-bytes {size}"):
        SmallStore(root, segment_bytes=size).store.open()
    option = ("--segment-bytes", size) if asked else ()
    result = run("repair", root, "--copy-to", tmp_path / "copy", "--yes", *option)
    assert result.exit_code == 0, result.output
    assert run("verify", root).exit_code == 0
    with SmallStore(root, segment_bytes=size) as store:
        assert 0 < store.max_offset("TopicA", 0) < 50


@pytest.mark.parametrize("byte", [b"\xcf", b"/", b" ", b"\0"])
def test_a_record_with_an_illegal_topic_name_is_damaged(
    root: Path, tmp_path: Path, byte: bytes
) -> None:
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"Orders":{},"Bills":{}}}')
    log = root / "commitlog" / ("0" * 20)
    content = log.read_bytes()
    place = content.index(b"Orders", 2000)
    log.write_bytes(content[:place] + byte + content[place + 1 :])
    damages = run_json("verify", root)["damages"]
    (record,) = (each for each in damages if each["kind"] == "bad-record")
    assert "illegal topic name" in record["detail"]
    assert "deleted-topic" not in {each["kind"] for each in damages}
    result = run("repair", root, "--copy-to", tmp_path / "one", "--yes")
    assert result.exit_code == 1
    assert "illegal topic name" in result.output
    result = run("repair", root, "--copy-to", tmp_path / "two", "--yes", "--cut-corrupt")
    assert result.exit_code == 0, result.output
    assert run("verify", root).exit_code == 0
    assert {path.name for path in (root / "consumequeue").iterdir()} == {"Orders", "Bills"}


def test_repair_without_yes_only_prints_what_it_would_do(root: Path, tmp_path: Path) -> None:
    flip(root / "consumequeue" / "Orders" / "0" / ("0" * 20), 7)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    result = run("repair", root, "--copy-to", tmp_path / "copy")
    assert result.exit_code == 0, result.output
    assert "bad-queue-entry" in result.stdout
    assert "nothing was changed" in result.stdout
    flip(root / "commitlog" / ("0" * 20), 90)
    assert run("repair", root, "--copy-to", tmp_path / "copy").exit_code == 1
    assert run("repair", root, "--copy-to", tmp_path / "copy", "--cut-corrupt").exit_code == 0
    flip(root / "commitlog" / ("0" * 20), 90)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "copy").exists()


def test_stores_below_a_directory_are_suggested(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "up" / "broker-a" / "store"
    shutil.copytree(root, target)
    for directory in (tmp_path / "up", tmp_path / "up" / "broker-a"):
        result = run("info", directory)
        assert result.exit_code == 2
        assert f"did you mean {target}?" in result.output


@pytest.mark.parametrize("what", ["records", "queue"])
def test_dump_of_an_unknown_topic(root: Path, what: str) -> None:
    result = run("dump", root, "--what", what, "--topic", "Nope")
    assert result.exit_code == 1
    assert result.stderr == f"Error: {root} has no topic Nope\n"
    assert result.stdout == ""


def test_repair_without_yes_reports_a_running_broker(root: Path) -> None:
    holder = (
        "import sys;from pathlib import Path;"
        "from goddard.environment.files import SystemFiles;"
        "from goddard.store.recovery.checkpoint import DirectoryLock"
    )
    lock = "lock=DirectoryLock(Path(sys.argv[1]),SystemFiles());lock.acquire()"
    code = f"{holder};{lock};print(flush=True);input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(root / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        result = run("repair", root)
        process.communicate(b"\n", timeout=30)
    assert result.exit_code == 1
    assert f"process {process.pid} holds the store's lock: stop the broker" in result.stdout


def test_repair_without_yes_reports_that_it_would_be_refused(root: Path) -> None:
    (root / "commitlog" / "notes.txt").touch()
    result = run("repair", root, "--cut-corrupt")
    assert result.exit_code == 1
    assert "it would be refused" in result.stdout
