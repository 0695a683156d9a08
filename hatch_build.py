"""Build hook: compile ``goddard.core`` where that is possible, and install without it elsewhere.

``GODDARD_CORE=auto`` (the default) compiles with the C compiler that is there (``$CC``, or ``cc``;
else the one of the ``ziglang`` package, if that is installed) and goes on without when compiling
fails; ``1`` makes a failure an error, ``0`` does not compile. Without the compiled modules Goddard
does the same work in Python.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGE = Path("src", "goddard", "core")
_MODULES = (
    "client_sends",
    "columns",
    "entries",
    "index",
    "pulls",
    "records",
    "send_answers",
    "send_headers",
    "send_properties",
    "send_records",
    "sends",
    "staged_sends",
    "texts",
)


class CoreBuildHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel, or puts them beside the sources of an editable one."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        mode = os.environ.get("GODDARD_CORE", "auto")
        if mode not in ("auto", "0", "1"):
            raise ValueError(f"GODDARD_CORE is {mode!r}; it can be auto, 0 or 1")
        if self.target_name != "wheel" or mode == "0":
            return
        folder = Path(tempfile.mkdtemp(prefix="goddard-core-"))
        try:
            compiled = _compile(Path(self.root), folder)
        except Exception as error:
            if mode == "1":
                raise
            self.app.display_warning(
                f"goddard.core was not compiled ({error}); Goddard works without, more slowly"
            )
            return
        if version == "editable":
            for path in compiled:
                # Running programs keep the old file: one that is overwritten would crash them.
                target = Path(self.root, _PACKAGE, path.name)
                copied = target.with_name(f"{path.name}.new")
                shutil.copy2(path, copied)
                copied.replace(target)
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in compiled:
            build_data["force_include"][str(path)] = f"goddard/core/{path.name}"


def _compile(root: Path, folder: Path) -> list[Path]:
    """The compiled modules, in a folder of their own. An error says why there are none."""
    sources = folder / "src" / "goddard" / "core"
    shutil.copytree(root / _PACKAGE, sources, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (sources.parent / "__init__.py").touch()
    program = folder / "setup.py"
    program.write_text(
        "from Cython.Build import cythonize\n"
        "from setuptools import Extension, setup\n"
        f"modules = {_MODULES!r}\n"
        "setup(name='goddard-core', ext_modules=cythonize([\n"
        "    Extension(f'goddard.core.{name}', [f'src/goddard/core/{name}.py'])\n"
        "    for name in modules], include_path=['src'], quiet=True))\n"
    )
    done = subprocess.run(
        [sys.executable, str(program), "build_ext", "--build-lib", "built"],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])
    return sorted((folder / "built" / "goddard" / "core").iterdir())


def _environment() -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    has_compiler = "CC" in environment or shutil.which("cc") or shutil.which("gcc")
    if not has_compiler and importlib.util.find_spec("ziglang") is not None:
        environment["CC"] = f"{sys.executable} -m ziglang cc"
    return environment
