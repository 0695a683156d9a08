"""Modules of broker and store import only from their own layer and from the layers below.

``make check`` checks the same for packages.
"""

import ast
from pathlib import Path

import pytest

import goddard

SOURCES = Path(goddard.__file__).parent
# From the top; a module imports from its own layer and those below.
LAYERS = (
    ("broker.broker",),
    (
        "broker.lane.sends",
        "broker.consuming.pull",
        "broker.sending.retry",
        "broker.sending.delay",
        "broker.sending.transactions",
    ),
    ("broker.sending.send",),
    ("broker.sending.message_rules", "broker.sending.overload"),
    ("broker.sending.appender",),
    ("store.store",),
    ("store.log.maintenance", "store.recovery.decide"),
    ("store.log.dispatch",),
    ("store.log.commitlog", "store.queues.table", "store.index.index"),
    ("store.queues.queue", "store.log.segment"),
    ("environment.files",),
    ("protocol.record",),
    ("errors",),
)


def imports_of(module: str) -> set[str]:
    path = SOURCES.joinpath(*module.split(".")).with_suffix(".py")
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return {name.removeprefix("goddard.") for name in found if name.startswith("goddard.")}


@pytest.mark.parametrize("depth", range(1, len(LAYERS)), ids=lambda depth: LAYERS[depth][0])
def test_modules_import_from_lower_layers_only(depth: int) -> None:
    above = {module for layer in LAYERS[:depth] for module in layer}
    for module in LAYERS[depth]:
        assert not imports_of(module) & above, module


def test_layers_import_each_other() -> None:
    """The layers import each other; otherwise renamed modules would make the test meaningless."""
    assert "broker.sending.appender" in imports_of("broker.broker")
    assert "store.store" in imports_of("broker.sending.appender")
    assert "store.log.commitlog" in imports_of("store.store")
    assert "store.log.segment" in imports_of("store.log.commitlog")
    assert "environment.files" in imports_of("store.log.segment")


# Threads of a blocking client and of the logging handler are their purpose.
_STARTING_THREADS = {"environment/threads.py", "client/blocking/loop.py", "logging.py"}


@pytest.mark.parametrize(
    "package", ["broker", "client", "core", "nameserver", "replication", "store", "transport"]
)
def test_threads_come_from_the_environment(package: str) -> None:
    for path in (SOURCES / package).rglob("*.py"):
        name = str(path.relative_to(SOURCES))
        starts = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("threading.Thread", "Thread", "ThreadPoolExecutor")
        ]
        assert not starts or name in _STARTING_THREADS, name
