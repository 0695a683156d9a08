# What goddard.core uses of Cython's pure-Python mode. The names are Cython's.
import builtins
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, overload

_F = TypeVar("_F", bound=Callable[..., Any])
_C = TypeVar("_C", bound=type)
_T = TypeVar("_T")

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
p_const_char: TypeAlias = Any
p_uchar: TypeAlias = Any
p_int: TypeAlias = Any
p_uint: TypeAlias = Any
NULL: Any

class _NoGil:
    def __call__(self, function: _F) -> _F: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> Literal[False]: ...

nogil: _NoGil

def cclass(kind: _C) -> _C: ...
def final(kind: _C) -> _C: ...
def cfunc(function: _F) -> _F: ...
def inline(function: _F) -> _F: ...
def boundscheck(is_on: builtins.bool) -> Callable[[_F], _F]: ...
def exceptval(*, check: builtins.bool) -> Callable[[_F], _F]: ...
def address(item: object) -> Any: ...
def cast(kind: Any, value: object) -> Any: ...
@overload
def declare(kind: type[_T], value: Any = ..., *, visibility: str = ...) -> _T: ...
@overload
def declare(kind: Any, value: Any = ..., *, visibility: str = ...) -> Any: ...
def sizeof(kind: Any) -> builtins.int: ...
