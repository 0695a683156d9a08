# The types of viewtypes.pxd: buffers of one dimension, without gaps.
from typing import Any, TypeAlias

# bytes, bytearray, memoryview, mmap; of 8-byte, and of 4-byte numbers
Bytes: TypeAlias = Any
WritableBytes: TypeAlias = Any
Numbers: TypeAlias = Any
WritableNumbers: TypeAlias = Any
Hashes: TypeAlias = Any
Offsets: TypeAlias = Any
