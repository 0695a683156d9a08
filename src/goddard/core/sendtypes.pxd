# Types and numbers of the modules for plain sends; mypy sees
# stubs/cython/cimports/goddard/core/sendtypes.pyi.

# The fields of a send request, by their short names.
cdef enum:
    FIELD_GROUP = 0
    FIELD_TOPIC = 1
    FIELD_DEFAULT_TOPIC = 2
    FIELD_DEFAULT_QUEUES = 3
    FIELD_QUEUE_ID = 4
    FIELD_SYS_FLAG = 5
    FIELD_BORN_TIME = 6
    FIELD_FLAG = 7
    FIELD_PROPERTIES = 8
    FIELD_RECONSUME_TIMES = 9
    FIELD_UNIT_MODE = 10
    FIELD_MAX_RECONSUME_TIMES = 11
    FIELD_BATCH = 12
    FIELD_BROKER_NAME = 13

# Headers.
cdef enum:
    JSON_HEADER = 0
    BINARY_HEADER = 1
    BINARY_HEAD_BYTES = 21
    ONEWAY_FLAG = 2

# A record of the log (see goddard.protocol.record), a queue entry, and a message of a batch.
cdef enum:
    QUEUE_OFFSET_AT = 20
    PHYSICAL_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    STORE_TIME_AT = 56
    RECORD_HEAD_BYTES = 88
    HOST_BYTES = 8
    ENTRY_BYTES = 20
    BATCH_HEAD_BYTES = 20
    MAX_PROPERTIES_BYTES = 32767

cdef enum:
    MAX_INT32 = 0x7FFFFFFF

cdef struct Text:
    const unsigned char* start
    Py_ssize_t length

# The header of a send request. Bit n of `seen` says that field n is there.
cdef struct RequestHeader:
    Text fields[14]
    int seen
    int code
    int opaque
    int flag
    bint has_escapes
    Text number             # the last one that was read outside the fields

# What is read of the properties of a request.
cdef struct SendProperties:
    Text unique_id
    Text tags

cdef struct StagedRecord:
    Py_ssize_t at           # first byte in the buffer of records
    Py_ssize_t number       # among the records of its queue in this block
    long long tags_code
    int size
    int queue               # which of the queues of this block
    int properties_length
    unsigned int topic_hash

cdef struct StagedRequest:
    Py_ssize_t first        # its first record
    Py_ssize_t count
    Py_ssize_t end          # last byte + 1 of its records in the buffer of records
    Py_ssize_t unique_id_at
    int unique_id_length    # -1: it has none
    int opaque
    int peer                # which of the peers of this block
    bint is_binary
    bint is_oneway

cdef struct StagedQueue:
    Py_ssize_t messages
    Py_ssize_t requests
    Py_ssize_t size
    long long queue_offset  # of its first record
    long long end_offset    # physical, of its last record
    int queue_id

cdef struct CrcTables:
    unsigned int at[2048]

# The names of the properties of one message.
cdef struct PairNames:
    Text at[32]

ctypedef Text* TextPointer
ctypedef CrcTables* CrcTablesPointer
ctypedef RequestHeader* RequestHeaderPointer
ctypedef SendProperties* SendPropertiesPointer
ctypedef StagedRecord* StagedRecords
ctypedef StagedRequest* StagedRequests
ctypedef StagedQueue* StagedQueues
