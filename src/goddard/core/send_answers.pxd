from goddard.core.sendtypes cimport StagedRequests
from goddard.core.staged_sends cimport StagedSends


cdef class AnswerWriter:
    cdef bytes store_host
    cdef tuple json_parts
    cdef tuple binary_parts
    cdef unsigned char* out
    cdef Py_ssize_t out_size
    cdef Py_ssize_t out_capacity

    cdef int _reserve_out(self, Py_ssize_t count)
    cdef int _add_part(self, bytes part)
    cdef int _add_number(self, long long value)
    cdef int _add_ids(self, StagedSends staged, StagedRequests request)
    cdef int _add_unique_id(self, StagedSends staged, StagedRequests request)
    cdef int _answer_json(self, StagedSends staged, Py_ssize_t number)
    cdef int _answer_binary(self, StagedSends staged, Py_ssize_t number)
    cdef Py_ssize_t _begin_value(self, int part)
    cdef void _end_value(self, Py_ssize_t at) noexcept
