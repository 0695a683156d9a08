from goddard.core.sendtypes cimport CrcTables
from goddard.core.staged_sends cimport OpenTopic, Peer

cdef Py_ssize_t count_batch(
    const unsigned char* body,
    Py_ssize_t size,
    Py_ssize_t fixed,
    Py_ssize_t max_record_bytes,
    Py_ssize_t max_batch_bytes,
) noexcept nogil


cdef class RecordWriter:
    cdef bytes store_host
    cdef CrcTables crc_tables

    cdef long long _body_crc(self, const unsigned char* data, Py_ssize_t length)
    cdef int write_head(
        self,
        unsigned char* out,
        Py_ssize_t size,
        int queue_id,
        int sys_flag,
        long long born_ms,
        int flag,
        Peer peer,
        const unsigned char* body,
        Py_ssize_t body_bytes,
    )
    cdef void write_tail(
        self, unsigned char* out, OpenTopic topic, Py_ssize_t properties_bytes
    ) noexcept
