"""Every program in ``examples/`` ends successfully and prints the expected output."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from goddard.testing.site import Site
from tests.support.guarded import Guarded

EXAMPLES = Path(__file__).parents[2] / "examples"
WAIT_SECONDS = 90

OUTCOMES: Mapping[str, str] = {
    "ordered.py": r"5 orders received, each in order",
    "delayed.py": r"level 1: wake up after \d+\.\d s(?s:.*)level 2: wake up after \d+\.\d s",
    "transactional.py": r"account-1: COMMIT\naccount-2: ROLLBACK\naccount-3: UNKNOWN(?s:.*)"
    r"check of account-3(?s:.*)received debit for account-3",
    "broadcast.py": r"(left|right) has 10(?s:.*)(left|right) has 10",
    "sql_filter.py": r"(car \d: red, \d\n){3}",
    "request_reply.py": r"one: ONE\ntwo: TWO\nthree: THREE",
    "asyncio_client.py": r"1000 sent to \d queues\n1000 received",
    "batch.py": r"1000 sent as a list, to 1 queue\(s\)\n1000 sent asynchronously\n"
    r"1000 sent in batches",
    "lite_pull.py": r"100 rows, the first is row 0",
    "namespaces.py": r"staging: sent(?s:.*)staging: received staging from(?s:.*)"
    r"production: received production from",
    "tracing.py": r"ConsumeEnd ConsumeStart SendTrace",
    "benchmark.py": r"one at a time: p50 [\d.]+ ms(?s:.*)together: [\d,]+ messages/s, 0 failed",
}
OTHERS = {
    "quickstart_producer.py",
    "quickstart_consumer.py",
    "test_with_pytest.py",
    "secure_client.py",
    "spark_batch.py",
}


def environment(site: Site) -> dict[str, str]:
    return {**os.environ, "NAMESRV_ADDR": site.namesrv, "PYTHONWARNINGS": "error"}


def run(command: list[str], env: Mapping[str, str], *, typed: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env=env,
        input=typed,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout


def received_ids(text: str) -> list[str]:
    return re.findall(r"message_id='(\w+)'", text)


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == OUTCOMES.keys() | OTHERS


def test_quickstart(site: Site) -> None:
    """A thousand messages are sent, and each is received once.

    The topic may also have messages of another test's quickstart.
    """
    sent = run([str(EXAMPLES / "quickstart_producer.py")], environment(site))
    ids = set(re.findall(r"SendResult \[sendStatus=SEND_OK, msgId=(\w+), ", sent))
    assert len(ids) == 1_000

    program = [sys.executable, str(EXAMPLES / "quickstart_consumer.py")]
    received: list[str] = []
    with subprocess.Popen(
        program,
        env=environment(site),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as consumer:
        assert consumer.stdout is not None
        try:
            for line in consumer.stdout:
                received += [each for each in received_ids(line) if each in ids]
                if len(received) == len(ids):
                    break
            consumer.terminate()
            rest, _ = consumer.communicate(timeout=WAIT_SECONDS)
        except BaseException:
            consumer.kill()
            raise
    assert consumer.returncode == 0
    assert sorted(received) == sorted(ids)
    assert ids.isdisjoint(received_ids(rest))
    assert rest.endswith("Consumer Stopped.\n")


@pytest.mark.parametrize("site", ["goddard"], indirect=True)
@pytest.mark.parametrize("name", sorted(OUTCOMES))
def test_example(site: Site, name: str) -> None:
    shown = run([str(EXAMPLES / name)], environment(site))
    assert re.search(OUTCOMES[name], shown), shown


@pytest.mark.java
@pytest.mark.timeout(240)
@pytest.mark.parametrize("tls", ["", "1"])
def test_secure_client(guarded: Guarded, tls: str) -> None:
    """RocketMQ's servers accept TLS at the same port."""
    root = {"ACCESS_KEY": "root", "SECRET_KEY": "root-secret"}
    env = {**os.environ, **root, "NAMESRV_ADDR": guarded.namesrv, "TLS": tls, "TOPIC": "TBW102"}
    shown = run([str(EXAMPLES / "secure_client.py")], env)
    assert shown == (
        f"sent {'with' if tls else 'without'} TLS to broker-guarded\nread back: hello\n"
    )


def test_example_with_pytest(tmp_path: Path) -> None:
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-c", os.devnull]
    env = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
    shown = run([*command, "--rootdir", str(tmp_path), str(EXAMPLES / "test_with_pytest.py")], env)
    assert "1 passed" in shown
