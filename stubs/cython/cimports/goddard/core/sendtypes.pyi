# The numbers of sendtypes.pxd, and its types: C structures, and pointers to them.
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

FIELD_GROUP: int
FIELD_TOPIC: int
FIELD_DEFAULT_TOPIC: int
FIELD_DEFAULT_QUEUES: int
FIELD_QUEUE_ID: int
FIELD_SYS_FLAG: int
FIELD_BORN_TIME: int
FIELD_FLAG: int
FIELD_PROPERTIES: int
FIELD_RECONSUME_TIMES: int
FIELD_UNIT_MODE: int
FIELD_MAX_RECONSUME_TIMES: int
FIELD_BATCH: int
FIELD_BROKER_NAME: int
JSON_HEADER: int
BINARY_HEADER: int
BINARY_HEAD_BYTES: int
ONEWAY_FLAG: int
QUEUE_OFFSET_AT: int
PHYSICAL_OFFSET_AT: int
SYS_FLAG_AT: int
STORE_TIME_AT: int
RECORD_HEAD_BYTES: int
HOST_BYTES: int
ENTRY_BYTES: int
BATCH_HEAD_BYTES: int
MAX_PROPERTIES_BYTES: int
MAX_INT32: int
