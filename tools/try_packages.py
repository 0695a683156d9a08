"""Install the built sdist and wheel into empty environments, and try what users do first.

Each package is installed twice into one environment: alone, where the client must work and the
command line must name the missing extra; then with the extra ``server``, where the command works.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

QUICKSTART = """
from goddard import LitePullConsumer, Message, Producer, PushConsumer, __version__

Message("topic", b"body")
print(__version__)
"""
EXTRAS_ONLY = {"click", "numpy", "pyarrow", "pyspark", "rich"}
TIMEOUT_SECONDS = 600


def main() -> int:
    dist = Path(sys.argv[1])
    packages = [*dist.glob("*.whl"), *dist.glob("*.tar.gz")]
    if len(packages) != 2:
        print(f"{dist} must hold one wheel and one sdist, not: {packages}", file=sys.stderr)
        return 1
    for package in packages:
        with tempfile.TemporaryDirectory(prefix="try-") as folder:
            try_package(package.resolve(), Path(folder))
    return 0


def try_package(package: Path, folder: Path) -> None:
    run(sys.executable, "-m", "venv", str(folder))
    python, goddard = str(folder / "bin" / "python"), str(folder / "bin" / "goddard")
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", str(package))
    installed = run(*pip, "list", "--format=freeze").lower().split()
    names = {line.partition("==")[0] for line in installed} - {"pip", "setuptools"}
    expect("goddard" in names, f"{package.name}: not in {names}")
    expect(not names & EXTRAS_ONLY, f"{package.name}: has {names & EXTRAS_ONLY} without extras")
    version = run(python, "-c", QUICKSTART, cwd=folder).strip()
    expect(version in package.name, f"{package.name}: the version is {version}")
    missing = run(goddard, "--version", exit_code=1)
    expect("pip install '.[server]'" in missing, f"{package.name}: {missing}")
    run(*pip, "install", "--quiet", f"{package}[server]")
    shown, *_ = run(goddard, "--version").splitlines()
    expect(shown == f"goddard, version {version}", f"{package.name}: {shown}")
    print(f"{package.name} works; without extras: {' '.join(sorted(names))}", flush=True)


def run(*command: str, cwd: Path | None = None, exit_code: int = 0) -> str:
    """What a command prints on both streams; it must end with this exit code."""
    done = subprocess.run(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    expect(done.returncode == exit_code, f"{' '.join(command)}: {done.returncode}\n{done.stdout}")
    return done.stdout


def expect(condition: object, text: str) -> None:
    if not condition:
        sys.exit(text)


if __name__ == "__main__":
    sys.exit(main())
