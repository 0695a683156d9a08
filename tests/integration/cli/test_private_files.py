"""Files that ``mqadmin`` writes: for their owner only, and not through symbolic links."""

import stat
import tempfile
from pathlib import Path

import pytest

from goddard.testing.cluster import Cluster
from tests.support.command_line import CommandLine


@pytest.fixture
def mqadmin(cluster: Cluster) -> CommandLine:
    return CommandLine({"NAMESRV_ADDR": cluster.namesrv}, program="mqadmin")


def is_private(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) == stat.S_IRUSR | stat.S_IWUSR


def test_an_export_does_not_follow_a_link(mqadmin: CommandLine, tmp_path: Path) -> None:
    export = ("exportConfigs", "-c", "DefaultCluster", "-f", str(tmp_path))
    assert mqadmin(*export).code == 0
    path, other = tmp_path / "configs.json", tmp_path / "other"
    assert is_private(path)
    path.rename(other)
    path.symlink_to(other)
    other.write_bytes(b"mine")
    result = mqadmin(*export)
    assert (result.code, result.err.count("\n")) == (1, 1), result.err
    assert other.read_bytes() == b"mine"


def test_the_plan_of_a_static_topic_is_private(
    mqadmin: CommandLine, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mqadmin("updateStaticTopic", "-t", f"static-{topic}", "-qn", "2", "-c", "DefaultCluster")
    files = list(tmp_path.iterdir())
    assert files
    assert all(map(is_private, files))
