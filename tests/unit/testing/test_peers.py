"""Fetching the jars: messages and exit codes when something is missing, and completeness.

Maven is a shell script in these tests, so that no test needs the network.
"""

import shutil
from pathlib import Path

import pytest

from tests.support import peers

MAVEN = """#!/bin/sh
echo "[INFO] Downloaded from somewhere: a.jar"
for argument; do
  case $argument in -DoutputDirectory=*) target=${argument#*=};; esac
done
mkdir -p "$target"
echo jar > "$target/a.jar"
echo "$@" >> "$MAVEN_CALLS"
exit ${MAVEN_EXIT:-0}
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with a few shell tools only, and an empty folder for the jars."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "mkdir"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("GODDARD_PEERS", str(tmp_path / "peers"))
    monkeypatch.setenv("MAVEN_CALLS", str(tmp_path / "calls"))
    monkeypatch.delenv("CI", raising=False)
    return folder


def add_tool(folder: Path, name: str, content: str = "#!/bin/sh\n") -> None:
    (folder / name).write_text(content)
    (folder / name).chmod(0o755)


def add_all_tools(folder: Path) -> None:
    add_tool(folder, "java")
    add_tool(folder, "javac")
    add_tool(folder, "mvn", MAVEN)


def test_missing_java_prints_one_line(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.main() == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "java, javac, mvn not found" in line
    assert "will be skipped" in line


def test_missing_java_fails_in_ci(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", "true")
    assert peers.main() == 1
    assert "CI=true requires it" in capsys.readouterr().out


def test_every_release_is_fetched_once(tools: Path, tmp_path: Path) -> None:
    add_all_tools(tools)
    assert peers.why_unavailable() == "RocketMQ 5.4.0, 4.9.4, 4.7.0 not fetched: run `make peers`"
    assert peers.main() == 0
    assert peers.main() == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    versions = [call.partition("-Drocketmq.version=")[2].split()[0] for call in calls]
    assert versions == ["5.4.0", "4.9.4", "4.7.0"]
    assert (tmp_path / "peers" / "5.4.0" / "lib" / "a.jar").exists()
    assert peers.why_unavailable() is None


def test_maven_is_not_needed_if_the_jars_exist(tools: Path) -> None:
    add_all_tools(tools)
    assert peers.main() == 0
    (tools / "mvn").unlink()
    assert peers.main() == 0
    assert peers.why_unavailable() is None


def test_failed_fetch_is_reported_and_incomplete(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_all_tools(tools)
    monkeypatch.setenv("MAVEN_EXIT", "1")
    assert peers.main() == 1
    assert "Maven could not fetch RocketMQ 5.4.0" in capsys.readouterr().out
    assert not peers.RELEASES["5.4.0"].is_complete
    monkeypatch.setenv("MAVEN_EXIT", "0")
    assert peers.main() == 0


def test_hanging_fetch_is_killed(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_all_tools(tools)
    add_tool(tools, "mvn", "#!/bin/sh\nwhile :; do :; done\n")
    monkeypatch.setattr(peers, "FETCH_TIMEOUT_SECONDS", 0.2)
    assert peers.main() == 1
    assert "stopped after 0.2 s" in capsys.readouterr().out


def test_removed_jars_are_fetched_again(tools: Path, tmp_path: Path) -> None:
    add_all_tools(tools)
    assert peers.main() == 0
    shutil.rmtree(peers.RELEASES["4.9.4"].lib)
    assert peers.main() == 0
    assert (tmp_path / "calls").read_text().count("-Drocketmq.version=4.9.4") == 2
