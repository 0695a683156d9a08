"""The cause of a failed job, in one sentence for its user, and the hint for a wrong name.

Spark wraps Python errors into pages of Java, Java's errors begin with the name of a Python object,
and transforms may raise anything. The sentence is the text of the innermost cause.
"""

import contextlib
import difflib
import re
import subprocess
import traceback
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from goddard.errors import GoddardError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ERROR_LINE: Final = re.compile(
    r"(?P<java>: |Caused by: )?"
    r"(?P<kind>(?:[\w$]+\.)*[A-Za-z_]\w*(?:Error|Exception)): (?P<words>.+)"
)
_SPARK: Final = ("pyspark.", "py4j.")
# What Spark puts around its words for its own tests and for those who look errors up.
_CODES: Final = re.compile(
    r"^Query \[id = [^]]*\] terminated with exception: |^\[[A-Z0-9_.]+\] |\s*SQLSTATE: \w{5}"
)
# How Spark says that somebody else wrote what it was about to write into a query's checkpoint.
_SHARED: Final = re.compile(
    r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming (?:queries are concurrently|jobs detected)"
)

JAVA_ENDED: Final = (
    "Spark's Java process has ended; it was killed, or had too little memory. Nothing is lost: run "
    "it again"
)
# How long a process whose connections are closed already may take to be gone.
_ENDING_SECONDS: Final = 10.0


def near(name: str, known: Iterable[str]) -> str:
    """A hint for ``name`` where one of ``known`` is needed."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(str(name).lower(), by_lower, 1, cutoff=0.5)
    if found:
        return f"did you mean {by_lower[found[0]]}?"
    return f"known: {', '.join(by_lower.values())}"


class PipelineError(GoddardError):
    """A job has failed; the text is for its user."""


def root_cause(error: BaseException) -> str:
    """The text of the innermost cause of an error."""
    if isinstance(error, GoddardError):
        return str(error)
    if isinstance(error, OSError):
        named = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        return named or str(error)
    if type(error).__module__.startswith(_SPARK):
        return _of_spark(str(error)) or type(error).__name__
    return _named(type(error).__name__, _first_line(str(error)))


def is_of_shared_checkpoint(error: BaseException) -> bool:
    """Whether a query failed because another one uses its checkpoint at the same time."""
    return _SHARED.search(str(error)) is not None


def where_it_failed(error: BaseException, file: Path) -> str:
    """The line of a file that raised an error; empty if it was raised elsewhere."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == file
    ]
    return f" in line {lines[-1]} of {file.name}" if lines else ""


def line_in_worker(error: BaseException, file: Path) -> int | None:
    """The line of a file that raised an error in a worker of Spark.

    Workers have the file elsewhere, under the same name.
    """
    lines = re.findall(rf'File "(?:[^"]*/)?{re.escape(file.name)}", line (\d+)', str(error))
    return int(lines[-1]) if lines else None


def java_has_ended(
    spark: "SparkSession", error: BaseException | None = None, *, is_ending: bool = False
) -> bool:
    """Whether the Java process of a session has ended; after an error of its connection, wait.

    ``is_ending``: any error does, for while it ends it has many.
    """
    # Spark's Python has no public way to it. None: somebody else started it.
    process: Any = getattr(attrgetter("_gateway")(spark.sparkContext), "proc", None)
    if process is None:
        return False
    if error is not None and (is_ending or _is_broken_connection(error)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_SECONDS)
    return process.poll() is not None


def _is_broken_connection(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (ConnectionError, EOFError)):
            return True
        if type(seen).__name__ in ("Py4JNetworkError", "Py4JError"):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _of_spark(text: str) -> str:
    found = [
        matched
        for line in text.splitlines()
        if (matched := _ERROR_LINE.fullmatch(line.strip()))
        and not matched["words"].startswith("Traceback ")
        # Of a format that there is not, it names a class that nobody asked for.
        and matched["kind"] != "java.lang.ClassNotFoundException"
    ]
    # A Python error inside of a Java one is the cause.
    of_python = [each for each in found if not each["java"] and not _is_java(each["kind"])]
    of_java = [each for each in found if each["java"]]
    if of_python:
        last = of_python[-1]
        # Errors of packages say who they are; of Python's own, "'x'" alone tells nobody anything.
        words = last["words"] if "." in last["kind"] else _named(last["kind"], last["words"])
    else:
        words = of_java[-1]["words"] if of_java else _first_line(text)
    return _CODES.sub("", words).strip(" ;").replace(".;", ";")


def _is_java(kind: str) -> bool:
    return kind.startswith(("java.", "org.", "scala.", "com."))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _named(kind: str, words: str) -> str:
    return f"{kind}: {words}" if words else kind
