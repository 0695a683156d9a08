"""The compiled part of Goddard: bytes in, bytes out, without the interpreter.

Its modules are Python that Cython compiles when the package is built. Where that was not possible,
``IS_COMPILED`` is false, nothing may import the modules, and callers do the same work in Python.
"""

from importlib import import_module
from typing import Final


def _is_compiled() -> bool:
    try:
        index = import_module("goddard.core.index")
    except ImportError:  # interpreted, the modules need the package `cython`
        return False
    return bool(index.IS_COMPILED)


IS_COMPILED: Final = _is_compiled()
