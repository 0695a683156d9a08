# What goddard.core uses of Cython's pure-Python mode. The names are Cython's.
import builtins
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

compiled: bool

Py_ssize_t: TypeAlias = builtins.int
bint: TypeAlias = builtins.bool
int: TypeAlias = builtins.int
uint: TypeAlias = builtins.int
uchar: TypeAlias = builtins.int
longlong: Any
ulonglong: TypeAlias = builtins.int
void: TypeAlias = None
# Pointers.
p_void: TypeAlias = Any
p_const_uchar: TypeAlias = Any
p_longlong: TypeAlias = Any
NULL: Any

class _NoGil:
    def __call__(self, function: _F) -> _F: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> Literal[False]: ...

nogil: _NoGil

def cfunc(function: _F) -> _F: ...
def inline(function: _F) -> _F: ...
def boundscheck(is_on: builtins.bool) -> Callable[[_F], _F]: ...
def exceptval(*, check: builtins.bool) -> Callable[[_F], _F]: ...
def address(item: object) -> Any: ...
def cast(kind: Any, value: object) -> Any: ...
def declare(kind: Any, value: Any = ...) -> Any: ...
