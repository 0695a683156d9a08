# The types of columntypes.pxd: C structures, and pointers to them.
from typing import Any, TypeAlias

RowLayout: TypeAlias = Any
Pair: TypeAlias = Any
Pairs: TypeAlias = Any
RowLayouts: TypeAlias = Any
PairsPointer: TypeAlias = Any
