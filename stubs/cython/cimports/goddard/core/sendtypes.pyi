# The types of sendtypes.pxd: C structures, and pointers to them.
from typing import Any, TypeAlias

Text: TypeAlias = Any
RequestHeader: TypeAlias = Any
SendProperties: TypeAlias = Any
StagedRecord: TypeAlias = Any
StagedRequest: TypeAlias = Any
StagedQueue: TypeAlias = Any
CrcTables: TypeAlias = Any
PairNames: TypeAlias = Any
TextPointer: TypeAlias = Any
CrcTablesPointer: TypeAlias = Any
RequestHeaderPointer: TypeAlias = Any
SendPropertiesPointer: TypeAlias = Any
StagedRecords: TypeAlias = Any
StagedRequests: TypeAlias = Any
StagedQueues: TypeAlias = Any
