"""The compiled part of Goddard: bytes in, bytes out, without the interpreter.

Its modules are Python that Cython compiles when the package is built. Where that was not possible,
``IS_COMPILED`` is false, nothing may import the modules, and callers do the same work in Python.
It is also false where the environment has ``GODDARD_CORE=0``.
"""

import os
from importlib import import_module
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
    try:
        modules = [import_module(f"goddard.core.{name}") for name in _MODULES]
    except ImportError:  # interpreted, the modules need the package `cython`
        return False
    return all(module.IS_COMPILED for module in modules)


IS_COMPILED: Final = _is_compiled()
