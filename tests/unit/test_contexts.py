"""The file of contexts."""

import os
import stat
import threading
from pathlib import Path

import pytest

from goddard.client.options import Credentials, session_options
from goddard.contexts import Context, Contexts, change, decode, encode, load, save
from goddard.errors import ConfigError
from goddard.transport.tls import TlsOptions

CONTEXT = Context(name_servers="a:9876", access_key="ak", secret_key="sk", tls=True)


def test_contexts_survive_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "contexts.json"
    contexts = Contexts().with_context("prod", CONTEXT)
    contexts = contexts.with_context("dev", Context(name_servers="b:1;c:2"))
    save(path, contexts)
    assert load(path) == contexts
    assert contexts.selected == "prod"
    assert list(path.parent.iterdir()) == [path]


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "contexts.json"
    save(path, Contexts().with_context("prod", CONTEXT))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"can be read by others .* chmod 600"):
        load(path)


def test_a_failed_write_leaves_no_file_with_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path / "contexts.json", Contexts().with_context("prod", CONTEXT))
    assert list(tmp_path.iterdir()) == []


def test_concurrent_changes_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "contexts.json"

    def dev(known: Contexts) -> Contexts:
        return known.with_context("dev", CONTEXT)

    def prod(known: Contexts) -> Contexts:
        other.start()
        other.join(0.05)  # it waits until this change is saved
        return known.with_context("prod", CONTEXT)

    other = threading.Thread(target=change, args=(path, dev))
    change(path, prod)
    other.join(10)
    assert sorted(load(path).by_name) == ["dev", "prod"]


def test_no_file_is_no_contexts(tmp_path: Path) -> None:
    assert load(tmp_path / "contexts.json") == Contexts()


def test_a_deleted_context_is_no_longer_selected() -> None:
    contexts = Contexts().with_context("prod", CONTEXT)
    assert contexts.without("prod") == Contexts()


def test_an_unknown_context_is_an_error_with_the_known_ones() -> None:
    contexts = Contexts().with_context("prod", CONTEXT)
    with pytest.raises(ConfigError, match="no context 'dev'; known contexts: prod"):
        contexts.get("dev")
    with pytest.raises(ConfigError, match="known contexts: none"):
        Contexts().without("dev")


def test_secrets_are_not_in_the_repr() -> None:
    assert "sk" not in repr(CONTEXT)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "Expecting value"),
        (b"\xff", "can't decode byte"),
        (b"[]", "it is not a JSON object"),
        (b"{}", '"contexts" is not a JSON object'),
        (b'{"contexts": {"a": 1}}', "context a is not a JSON object"),
        (b'{"contexts": {"a": {}}}', "context a has no name_servers"),
        (b'{"contexts": {"a": {"nameServers": "x"}}}', "context a has the unknown field nameS"),
        (b'{"contexts": {"a": {"name_servers": 5}}}', "name_servers of context a is not a text"),
        (
            b'{"contexts": {"a": {"name_servers": "x", "tls": "no"}}}',
            "tls of context a is not true or false",
        ),
        (b'{"contexts": {}, "selected": []}', '"selected" is not the name of a context'),
    ],
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(
    tmp_path: Path, data: bytes, problem: str
) -> None:
    path = tmp_path / "contexts.json"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(
        ConfigError, match=r"is not a file of contexts.*correct or delete it"
    ) as error:
        load(path)
    assert problem in str(error.value)


def test_the_file_has_only_what_is_set() -> None:
    data = encode(Contexts().with_context("dev", Context(name_servers="b:1")))
    assert b"secret_key" not in data
    assert decode(data).selected == "dev"


def test_clients_use_the_selected_context_if_nothing_else_says_where_the_cluster_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "contexts.json"
    save(path, Contexts().with_context("prod", CONTEXT))
    monkeypatch.setenv("GODDARD_CONTEXTS", str(path))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    chosen = session_options(None, {})
    assert chosen.name_servers == ("a:9876",)
    assert chosen.credentials == Credentials("ak", "sk")
    assert chosen.tls == TlsOptions(verify_peer=False)
    own = session_options(None, {"credentials": Credentials("other", "key")})
    assert own.credentials == Credentials("other", "key")
    for given in (session_options("b:1", {}), session_options("", {})):
        assert given.credentials is None
        assert "a:9876" not in given.name_servers
    monkeypatch.setenv("NAMESRV_ADDR", "c:2")
    assert session_options(None, {}).name_servers == ("c:2",)
    assert session_options(None, {}).credentials is None
