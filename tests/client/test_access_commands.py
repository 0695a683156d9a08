"""``goddard user`` and ``goddard acl`` at RocketMQ 5.4.0; Goddard's brokers refuse in one line."""

from pathlib import Path

import pytest

from goddard.testing.site import Site
from tests.support.command_line import CommandLine
from tests.support.guarded import Guarded


@pytest.fixture
def goddard(guarded: Guarded, tmp_path: Path) -> CommandLine:
    """Commands with a context that has the keys of root."""
    command = CommandLine({"GODDARD_CONTEXTS": str(tmp_path / "contexts.json")})
    command(
        *("context", "set", "root", "-n", guarded.namesrv, "--access-key", "root"),
        stdin="root-secret\n",
    )
    return command


@pytest.mark.java
@pytest.mark.timeout(240)
def test_users_are_created_changed_and_deleted(goddard: CommandLine) -> None:
    made = goddard("user", "create", "eve", stdin="secret\n")
    assert (made.code, made.out) == (0, ""), made.err
    assert made.err.startswith("user eve is created on 127.0.0.1:")
    again = goddard("user", "create", "eve", stdin="secret\n")
    assert again.err == "goddard user create: user eve exists; 'goddard user update' changes it\n"
    assert goddard("user", "update", "eve", "--disable").code == 0
    assert goddard.json("user", "show", "eve") == {
        "user": "eve",
        "type": "Normal",
        "status": "disable",
    }
    assert "eve" in {row["user"] for row in goddard.json("user", "list")}
    assert "add --yes to do it" in goddard("user", "delete", "eve").err
    assert goddard("user", "delete", "eve", "--yes").code == 0
    gone = goddard("user", "show", "eve")
    assert (gone.code, gone.err) == (
        1,
        "goddard user show: there is no user eve; 'goddard user list' shows all\n",
    )


@pytest.mark.java
@pytest.mark.timeout(240)
def test_rights_are_granted_and_deleted(goddard: CommandLine) -> None:
    goddard("user", "create", "joe", stdin="secret\n")
    rights = ("acl", "grant", "User:joe", "Topic:orders")
    granted = goddard(*rights, "--action", "Pub", "--from", "127.0.0.1")
    assert (granted.code, "User:joe may Pub Topic:orders on" in granted.err) == (0, True)
    assert goddard(*rights, "--action", "Sub", "--deny").code == 0
    (row,) = goddard.json("acl", "list", "User:joe")
    assert (row["resource"], row["actions"], row["decision"]) == ("Topic:orders", ["Sub"], "Deny")
    assert goddard("acl", "delete", "User:joe", "Topic:orders", "--yes").code == 0
    none = goddard("acl", "delete", "User:joe", "--yes")
    assert none.err == (
        "goddard acl delete: User:joe has no rights; 'goddard acl list' shows all\n"
    )


@pytest.mark.parametrize("site", ["goddard"], indirect=True)
@pytest.mark.parametrize(
    "command", ["user list", "user create a", "acl list", "acl grant User:a Topic:b --action Pub"]
)
def test_brokers_without_access_control(site: Site, command: str) -> None:
    goddard = CommandLine({"NAMESRV_ADDR": site.namesrv})
    done = goddard(*command.split(), stdin="secret\n")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert f"the broker {site.broker.address} does not support access control" in done.err
