"""``import goddard`` is cheap, and what it offers is there, for threads and for asyncio."""

import inspect
import re
import subprocess
import sys

import pytest

import goddard
from goddard import aio
from goddard.client.blocking import BlockingClient

CLIENTS = ("Admin", "LitePullConsumer", "Producer", "PushConsumer", "TransactionProducer")
# Imported by no client; asyncio and the like not even by `import goddard`.
SERVERS_ONLY = ("click", "numpy", "pyarrow", "pyspark", "rich", "typer", "pytest")
OURS = ("goddard.broker", "goddard.cli", "goddard.nameserver", "goddard.store", "goddard.testing")


def modules_after(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_else() -> None:
    imported = modules_after("import goddard") - modules_after("import typing, importlib")
    assert imported == {"goddard"}


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_import_nothing_that_only_servers_need(name: str) -> None:
    for program in (f"from goddard import {name}", f"from goddard.aio import {name}"):
        imported = modules_after(program)
        assert imported.isdisjoint(SERVERS_ONLY)
        assert imported.isdisjoint(OURS)


def test_every_public_name_is_there() -> None:
    for name in goddard.__all__:
        assert getattr(goddard, name) is not None
    assert set(goddard.__all__) <= set(dir(goddard))


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'goddard' has no attribute 'Nothing'"):
        _ = vars(goddard)["__getattr__"]("Nothing")


def test_both_faces_have_the_same_names() -> None:
    assert set(aio.__all__) == set(goddard.__all__) - {"__version__"}
    for name in aio.__all__:
        if name not in CLIENTS:
            assert getattr(aio, name) is getattr(goddard, name)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_blocking_client_has_what_the_asyncio_one_has(name: str) -> None:
    blocking, core = getattr(goddard, name), getattr(aio, name)
    assert issubclass(blocking, BlockingClient)
    for attribute, member in inspect.getmembers(blocking):
        if attribute.startswith("_") or attribute in ("start", "stop", "send_async"):
            continue
        if inspect.isfunction(member):
            theirs = inspect.signature(getattr(core, attribute)).parameters
            ours = inspect.signature(member).parameters
            assert list(ours)[1:] == list(theirs)[1:], attribute
            assert [item.default for item in ours.values()][1:] == [
                item.default for item in theirs.values()
            ][1:], attribute
            assert words(member) == words(getattr(core, attribute)), attribute


def words(function: object) -> list[str]:
    return re.sub(r"\b(async|await) ", "", inspect.getdoc(function) or "").split()
