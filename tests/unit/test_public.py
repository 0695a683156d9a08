"""``import goddard`` is cheap, and its names are there, for threads and for asyncio."""

import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

import goddard
from goddard import aio
from goddard.client.blocking.client import BlockingClient
from goddard.client.members import ConsumerMember, ProducerMember

PUBLIC = set(vars(goddard)["__all__"])
CLIENTS = ("Admin", "LitePullConsumer", "Producer", "PushConsumer", "TransactionProducer")
# No client imports these; `import goddard` does not import asyncio, either.
SERVERS_ONLY = ("click", "numpy", "pyarrow", "pyspark", "rich", "typer", "pytest")
OURS = ("goddard.broker", "goddard.cli", "goddard.nameserver", "goddard.store", "goddard.testing")


def output_of(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def modules_after(program: str) -> set[str]:
    return set(output_of(f"{program}\nimport sys\nprint(*sys.modules)").split())


def test_importing_the_package_imports_nothing_else() -> None:
    imported = modules_after("import goddard") - modules_after("import typing, importlib")
    assert imported == {"goddard"}


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_do_not_import_server_packages(name: str) -> None:
    for program in (f"from goddard import {name}", f"from goddard.aio import {name}"):
        imported = modules_after(program)
        assert imported.isdisjoint(SERVERS_ONLY)
        assert imported.isdisjoint(OURS)


def test_every_public_name_exists() -> None:
    assert set(CLIENTS) < PUBLIC
    for name in PUBLIC:
        assert getattr(goddard, name) is not None
    assert set(dir(goddard)) >= PUBLIC


def test_star_import_brings_all_public_names() -> None:
    program = "from goddard import *; print(*(name for name in dir() if name[0] != '_'))"
    assert set(output_of(program).split()) == PUBLIC


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'goddard' has no attribute 'Nothing'"):
        _ = vars(goddard)["__getattr__"]("Nothing")


def test_asyncio_has_the_same_names() -> None:
    assert {name for name in vars(aio) if name[0].isalpha()} == PUBLIC
    for name in PUBLIC.difference(CLIENTS):
        assert getattr(aio, name) is getattr(goddard, name)


def public_methods(kind: type) -> set[str]:
    return {
        name
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def parameters(function: Callable[..., object]) -> list[tuple[str, object, object]]:
    items = list(inspect.signature(function).parameters.values())
    return [(item.name, item.kind, item.default) for item in items[1:]]


def called_by_sessions() -> set[str]:
    return {name for kind in (ProducerMember, ConsumerMember) for name in vars(kind)}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_blocking_client_has_the_methods_of_the_asyncio_one(name: str) -> None:
    blocking, core = getattr(goddard, name), getattr(aio, name)
    assert issubclass(blocking, BlockingClient)
    renamed = {"send_soon": "send_async"}
    assert public_methods(blocking) == {renamed.get(each, each) for each in public_methods(core)}


# Sessions do not call Admin: its ``reset_offsets`` is a method for users.
@pytest.mark.parametrize("name", sorted({*CLIENTS} - {"Admin"}))
def test_public_clients_do_not_show_what_sessions_call(name: str) -> None:
    assert {"published_topics", "rebalance"} <= called_by_sessions()
    assert public_methods(getattr(aio, name)).isdisjoint(called_by_sessions())


@pytest.mark.parametrize("name", CLIENTS)
def test_methods_have_the_signatures_and_docstrings_of_the_asyncio_ones(name: str) -> None:
    blocking, core = getattr(goddard, name), getattr(aio, name)
    assert words(blocking) == words(core)
    for method in public_methods(blocking) - {"start", "stop", "send_async"}:
        ours, theirs = getattr(blocking, method), getattr(core, method)
        assert not inspect.iscoroutinefunction(ours), method
        assert parameters(ours) == parameters(theirs), method
        assert words(ours) == words(theirs), method
        assert "await " not in (inspect.getdoc(ours) or ""), method
    assert parameters(blocking.__init__) == parameters(core.__init__)


def test_help_shows_signature_and_docstring() -> None:
    text = pydoc.plain(pydoc.render_doc(goddard.Producer.send))
    assert "send(self, message: " in text
    assert "Send a message and wait until a broker has stored it." in text
    assert "with Producer(" in pydoc.plain(pydoc.render_doc(goddard.Producer))


def words(item: object) -> list[str]:
    return re.sub(r"\b(async|await) ", "", inspect.getdoc(item) or "").split()
