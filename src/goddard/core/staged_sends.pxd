from goddard.core.sendtypes cimport StagedQueues, StagedRecords, StagedRequests, Text


cdef class OpenTopic:
    cdef str name
    cdef bytes encoded
    cdef int queue_count
    cdef unsigned int topic_hash
    cdef long long block
    cdef int* places


cdef class Peer:
    cdef bytes born_host
    cdef object connection


cdef class StagedSends:
    cdef long long number
    cdef unsigned char* records
    cdef Py_ssize_t size_
    cdef Py_ssize_t capacity
    cdef unsigned char* ids
    cdef Py_ssize_t ids_size
    cdef Py_ssize_t ids_capacity
    cdef StagedRecords record
    cdef Py_ssize_t record_count
    cdef Py_ssize_t record_capacity
    cdef StagedRequests request
    cdef Py_ssize_t request_count_
    cdef Py_ssize_t request_capacity
    cdef StagedQueues queue
    cdef Py_ssize_t queue_count
    cdef Py_ssize_t queue_capacity
    cdef list topics
    cdef list peers
    cdef Py_ssize_t placed_requests
    cdef long long first_offset
    cdef long long last_offset
    cdef long long time_ms

    cdef int reserve_bytes(self, Py_ssize_t count)
    cdef int keep_id(self, Text unique_id)
    cdef int reserve_records(self, Py_ssize_t count)
    cdef int reserve_request(self)
    cdef int queue_of(self, OpenTopic topic, int queue_id)
