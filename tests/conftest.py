"""What every suite shares: the event loop, a check for leaked tasks, and what `java` tests need."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from tests.support import peers
from tests.support.java import BRIEF_JVM_FLAGS

# Options of every Java that Spark starts here: launchers, drivers, masters and workers.
_SPARK_JAVA_OPTIONS = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--name-server",
        choices=("goddard", "java"),
        default="goddard",
        help="whose name server the interop suite tests; `java` checks the suite itself",
    )
    parser.addoption(
        "--broker",
        choices=("goddard", "java", "both"),
        default="goddard",
        help="whose broker the client suites test; `java` checks the suites themselves",
    )


# However long an example takes: a busy machine is not a failure.
settings.register_profile("goddard", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("goddard")


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A background job of a shell. Tests send SIGINT, to this process and to its children.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The contexts of whoever runs the tests must not give them a cluster.
    os.environ["GODDARD_CONTEXTS"] = "/nonexistent/contexts.json"
    for name in _SPARK_JAVA_OPTIONS:
        os.environ.setdefault(name, " ".join(BRIEF_JVM_FLAGS))


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop that the daemons run on."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _require_java([item for item in items if item.get_closest_marker("java")])
    for item in items:
        if isinstance(item, pytest.Function) and asyncio.iscoroutinefunction(item.function):
            # First in, last out: what the other fixtures leave running is seen as well.
            item.fixturenames.insert(0, "no_leaked_tasks")


def _require_java(items: list[pytest.Item]) -> None:
    reason = peers.why_unavailable() if items else None
    if reason is None:
        return
    if peers.is_required():
        pytest.exit(f"CI=true requires the Java peers: {reason}", returncode=1)
    for item in items:
        item.add_marker(pytest.mark.skip(reason=f"no Java peers: {reason}"))


@pytest.fixture
async def no_leaked_tasks() -> AsyncIterator[None]:
    """Fail an async test that ends with tasks of its own still running."""
    before = asyncio.all_tasks()
    yield
    # One turn of the loop, so that a task cancelled a moment ago can end.
    await asyncio.sleep(0)
    leaked = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not leaked, f"tasks left running: {sorted(task.get_name() for task in leaked)}"
