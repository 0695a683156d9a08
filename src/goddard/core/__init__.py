"""The compiled part of Goddard: bytes in, bytes out, without the interpreter.

Its modules are Python that Cython compiles when the package is built. Where that was not possible,
``IS_COMPILED`` is false, nothing may import the modules, and callers do the same work in Python.
It is also false where the environment has ``GODDARD_CORE=0``.
"""

import os
from importlib import import_module
from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec
from typing import Final

_MODULES: Final = (
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


def _is_compiled() -> bool:
    if os.environ.get("GODDARD_CORE") == "0":
        return False
    names = [f"goddard.core.{name}" for name in _MODULES]
    # The sources are not imported: their behaviour without Cython's compiler is undefined.
    for spec in map(find_spec, names):
        if spec is None or not isinstance(spec.loader, ExtensionFileLoader):
            return False
    try:
        return all(import_module(name).IS_COMPILED for name in names)
    except ImportError:  # compiled for another platform
        return False


IS_COMPILED: Final = _is_compiled()
