"""The official RocketMQ jars: the versions that the suites use, and downloading them once.

``python -m tests.support.peers`` (``make peers``) lets Maven copy the jars of every version to
``.peers/<version>/lib`` at the project root, or below ``$GODDARD_PEERS``. A version is complete if
its stamp file has the fingerprint of its pom. The jars are copied to another folder and renamed, so
an interrupted run leaves nothing that looks complete, and the next run uses Maven's cache. Without
Java or Maven nothing is fetched; this is an error only with ``CI=true``.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from goddard.errors import GoddardError

PROJECT_ROOT = Path(__file__).resolve().parents[2]
POM_DIR = PROJECT_ROOT / "tests" / "peers"
FETCH_TIMEOUT_SECONDS = 1800


class PeersError(GoddardError):
    """A Java peer cannot be fetched, compiled, started or used; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """One published version and the pom that fetches its jars."""

    version: str
    content: str
    pom: Path

    @property
    def home(self) -> Path:
        return peers_dir() / self.version

    @property
    def lib(self) -> Path:
        return self.home / "lib"

    @property
    def is_complete(self) -> bool:
        try:
            return self._stamp.read_text() == self._fingerprint() and any(self.lib.glob("*.jar"))
        except OSError:
            return False

    def mark_complete(self) -> None:
        self._stamp.write_text(self._fingerprint())

    @property
    def _stamp(self) -> Path:
        return self.home / "complete"

    def _fingerprint(self) -> str:
        return hashlib.sha256(self.version.encode() + self.pom.read_bytes()).hexdigest()


_SERVERS = "name server, broker, tools and client"
RELEASES = {
    release.version: release
    for release in (
        Release("5.4.0", _SERVERS, POM_DIR / "pom.xml"),
        Release("4.9.4", _SERVERS, POM_DIR / "pom.xml"),
        Release("4.7.0", "examples", POM_DIR / "example" / "pom.xml"),
    )
}
"""The versions that the suites use. The examples run with the jars of another version."""


def peers_dir() -> Path:
    """The folder of the jars; git ignores it, and it can be deleted at any time."""
    chosen = os.environ.get("GODDARD_PEERS")
    return Path(chosen).absolute() if chosen else PROJECT_ROOT / ".peers"


def is_required() -> bool:
    """Whether missing peers are an error (in CI); otherwise tests are skipped."""
    return os.environ.get("CI", "").lower() == "true"


def missing_tools() -> list[str]:
    return [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]


def why_unavailable() -> str | None:
    """Why the Java suites cannot run here; None if they can."""
    absent = [tool for tool in ("java", "javac") if shutil.which(tool) is None]
    if absent:
        return f"{' and '.join(absent)} not found: install a JDK 17 or newer"
    incomplete = [version for version, release in RELEASES.items() if not release.is_complete]
    if incomplete:
        return f"RocketMQ {', '.join(incomplete)} not fetched: run `make peers`"
    return None


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file, so that two processes do not write the same folder at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fetch(release: Release, console: Console) -> None:
    """Download one version's jars, unless they are complete."""
    with exclusive(peers_dir() / f"{release.version}.lock"):
        if release.is_complete:
            return
        started = time.monotonic()
        partial = release.home / "lib.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(release.lib, ignore_errors=True)
        _copy_dependencies(release, partial, console)
        jars = len(list(partial.glob("*.jar")))
        if not jars:
            raise PeersError(f"Maven reported success but copied no jar of {release.version}")
        partial.rename(release.lib)
        release.mark_complete()
        seconds = time.monotonic() - started
        console.print(f"RocketMQ {release.version}: {jars} jars in {seconds:.0f} s")


def _copy_dependencies(release: Release, target: Path, console: Console) -> None:
    command = [
        "mvn",
        "-B",
        f"--file={release.pom}",
        f"-Drocketmq.version={release.version}",
        f"-DoutputDirectory={target}",
        "dependency:copy-dependencies",
    ]
    what = f"RocketMQ {release.version} ({release.content})"
    last_lines: deque[str] = deque(maxlen=25)
    downloaded = copied = 0
    console.print(f"{what}: fetching ...")
    with (
        console.status(f"{what}: asking Maven ...") as status,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as maven,
    ):
        # Reading lines has no timeout, so a timer kills Maven if it hangs.
        watchdog = threading.Timer(FETCH_TIMEOUT_SECONDS, maven.kill)
        watchdog.daemon = True
        watchdog.start()
        assert maven.stdout is not None
        for line in maven.stdout:
            if "Downloaded" in line:
                downloaded += 1
            elif "Copying " in line:
                copied += 1
            elif "Downloading" not in line and "Progress" not in line:
                last_lines.append(line.rstrip())
            status.update(f"{what}: {downloaded} files downloaded, {copied} jars copied")
        maven.wait()
        watchdog.cancel()
    if maven.returncode != 0:
        if maven.returncode == -signal.SIGKILL:
            last_lines.append(f"stopped after {FETCH_TIMEOUT_SECONDS} s")
        raise PeersError(f"Maven could not fetch {what}:\n" + "\n".join(last_lines))


def main() -> int:
    console = Console(highlight=False)
    missing = missing_tools()
    if missing and why_unavailable() is not None:
        needs = f"{', '.join(missing)} not found; the interop suite needs a JDK 17+ and Maven"
        if is_required():
            console.print(f"Java peers: {needs}, and CI=true requires it.", soft_wrap=True)
            return 1
        console.print(f"Java peers: {needs}; its tests will be skipped.", soft_wrap=True)
        return 0
    try:
        for release in RELEASES.values():
            fetch(release, console)
        console.print(
            f"Java peers: RocketMQ {', '.join(RELEASES)} in {peers_dir()}", soft_wrap=True
        )
    except PeersError as error:
        console.print(str(error), markup=False, soft_wrap=True)
        console.print("Run `make peers` again; it continues with the files already downloaded.")
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted; the next `make peers` continues with the downloaded files.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
