"""What went wrong, in one sentence for whoever started a job.

Spark wraps a Python error into pages of Java, Java's errors begin with the name of a Python object,
and transforms raise whatever they like. The sentence is the innermost cause in its own words.
"""

import re
import traceback
from pathlib import Path
from typing import Final

from goddard.errors import GoddardError

_ERROR_LINE: Final = re.compile(
    r"(?P<java>: |Caused by: )?"
    r"(?P<kind>(?:[\w$]+\.)*[A-Za-z_]\w*(?:Error|Exception)): (?P<words>.+)"
)
_SPARK: Final = ("pyspark.", "py4j.")
# What Spark puts around its words for its own tests and for those who look errors up.
_CODES: Final = re.compile(r"^\[[A-Z0-9_.]+\] |\s*SQLSTATE: \w{5}")


class PipelineError(GoddardError):
    """A job that cannot go on; the text is for whoever started it."""


def sentence(error: BaseException) -> str:
    """What an error comes down to."""
    if isinstance(error, GoddardError):
        return str(error)
    if isinstance(error, OSError):
        named = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        return named or str(error)
    if type(error).__module__.startswith(_SPARK):
        return _of_spark(str(error)) or type(error).__name__
    return _named(type(error).__name__, _first_line(str(error)))


def where_it_failed(error: BaseException, file: Path) -> str:
    """The line of a file that an error comes from, if it does."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == file
    ]
    return f" in line {lines[-1]} of {file.name}" if lines else ""


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
