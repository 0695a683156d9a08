"""The pytest plug-in in separate projects."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

WAIT_SECONDS = 90

USING = """\
import pytest

from goddard import Message, NoRouteError, Producer


@pytest.fixture(scope="session")
def goddard_broker_properties():
    return {"autoCreateTopicEnable": "false"}


def test_messages_arrive_in_order(goddard_topic, goddard_producer, goddard_read):
    topic = goddard_topic("orders", queues=1)
    for number in range(3):
        goddard_producer.send(Message(topic, b"%d" % number))
    assert [message.body for message in goddard_read(topic, 3)] == [b"0", b"1", b"2"]


def test_topic_and_group_names_are_unique(goddard_topic, goddard_group, goddard_read):
    names = [goddard_topic("same"), goddard_topic("same"), goddard_group(), goddard_group()]
    assert len(set(names)) == 4
    with pytest.raises(TimeoutError, match="has 0 messages, not 1"):
        goddard_read(names[0], 1, timeout_seconds=0.5)


def test_own_client(goddard_name_servers, goddard_group):
    with Producer(goddard_group("mine"), name_servers=goddard_name_servers) as producer:
        with pytest.raises(NoRouteError):
            producer.send(Message("no_such_topic", b"x"))


def test_broker_restart(goddard_cluster, goddard_topic, goddard_producer):
    topic = goddard_topic("restart")
    goddard_cluster.broker.kill()
    goddard_cluster.broker.start()
    goddard_producer.send(Message(topic, b"still there"), timeout_ms=20_000)
"""

NOT_USING = """\
import subprocess
import sys
import threading


def test_plugin_imports_nothing_else():
    loaded = {name for name in sys.modules if name.split(".")[0] == "goddard"}
    assert loaded == {"goddard", "goddard.testing", "goddard.testing.plugin"}
    assert "asyncio" not in sys.modules
    assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
"""


WITHOUT_EXTRA = """\
import sys

# Makes the import fail, as if it were not installed.
sys.modules["click"] = None


def test_needs_a_broker(goddard_producer):
    pass
"""


def run_project(folder: Path, program: str, exit_code: int = 0) -> str:
    (folder / "test_project.py").write_text(program)
    # Without the other plug-ins that are installed here.
    others = ("asyncio", "timeout", "hypothesispytest")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    command += [word for name in others for word in ("-p", f"no:{name}")]
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "NAMESRV"))
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout


def test_plugin_is_an_entry_point() -> None:
    (entry,) = (item for item in entry_points(group="pytest11") if item.name == "goddard")
    assert entry.value == "goddard.testing.plugin"


def test_project_that_uses_the_plugin(tmp_path: Path) -> None:
    assert "4 passed" in run_project(tmp_path, USING)


def test_project_that_does_not_use_the_plugin(tmp_path: Path) -> None:
    assert "1 passed" in run_project(tmp_path, NOT_USING)


def test_project_without_the_server_extra(tmp_path: Path) -> None:
    output = run_project(tmp_path, WITHOUT_EXTRA, exit_code=1)
    assert "1 error" in output
    assert "click is not installed; it comes with the extra 'server'" in output
    assert "Traceback" not in output


def test_fixtures_are_documented(pytestconfig: pytest.Config) -> None:
    plugin = pytestconfig.pluginmanager.get_plugin("goddard")
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "testing.md").read_text()
    fixtures = [name for name in vars(plugin) if name.startswith("goddard_")]
    assert len(fixtures) == 7
    for name in fixtures:
        assert f"| `{name}` |" in guide
