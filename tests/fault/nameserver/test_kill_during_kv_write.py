"""kill -9 while keys are written: acknowledged keys are there after the restart."""

import itertools
import json
import random
import sys
import threading
from pathlib import Path

from goddard.errors import GoddardError
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.testing.ports import lease_port
from goddard.testing.process import Process
from goddard.testing.wire import ask

CYCLES = 20
WRITERS = 3
KEYS = 3


def test_acknowledged_keys_survive_kill_9(tmp_path: Path) -> None:
    home = tmp_path / "home"
    port = lease_port()
    address = f"127.0.0.1:{port}"
    options = ["--port", str(port), "--home", str(home)]
    process = Process(
        "name server",
        [sys.executable, "-m", "goddard.cli.main", "namesrv", *options],
        log=tmp_path / "output.log",
        ready="boot success",
        port=port,
        start_timeout=60,
    )
    chance = random.Random(20260)
    acknowledged: dict[str, int] = {}
    counter = itertools.count()
    with process:
        for cycle in range(CYCLES):
            process.start()
            found = stored(address)
            for key, number in acknowledged.items():
                # A write that was stored but not acknowledged may be there, and is newer.
                assert found[key] >= number, f"cycle {cycle}: {key}"
            acknowledged.update(found)
            per_writer: list[dict[str, int]] = [{} for _ in range(WRITERS)]
            acked = threading.Semaphore(0)
            writers = [
                threading.Thread(
                    target=write_until_killed, args=(address, f"w{n}", counter, acks, acked)
                )
                for n, acks in enumerate(per_writer)
            ]
            for writer in writers:
                writer.start()
            for _ in range(chance.randrange(1, 30)):
                assert acked.acquire(timeout=20)
            process.kill()
            for writer in writers:
                writer.join(10)
                assert not writer.is_alive()
            for acks in per_writer:
                acknowledged.update(acks)
    assert len(acknowledged) == WRITERS * KEYS
    # Java reads this file too, so it must be complete.
    assert "configTable" in json.loads((home / "namesrv" / "kvConfig.json").read_bytes())


def write_until_killed(
    address: str,
    writer: str,
    counter: "itertools.count[int]",
    acks: dict[str, int],
    acked: threading.Semaphore,
) -> None:
    """Write new and existing keys in turn, and record the acknowledged ones."""
    for turn in itertools.count():
        key = f"{writer}-{turn % KEYS}"
        number = next(counter)
        fields = {"namespace": "fault", "key": key, "value": f"{number} {'x' * 2000}"}
        try:
            answer = ask(address, RemotingCommand(RequestCode.PUT_KV_CONFIG, fields), 5)
        except (OSError, GoddardError):
            return
        if answer.code != 0:
            return
        acks[key] = number
        acked.release()


def stored(address: str) -> dict[str, int]:
    fields = {"namespace": "fault"}
    answer = ask(address, RemotingCommand(RequestCode.GET_KVLIST_BY_NAMESPACE, fields))
    if answer.code != 0:
        return {}
    table = json.loads(bytes(answer.body))["table"]
    return {key: int(value.split()[0]) for key, value in table.items()}
