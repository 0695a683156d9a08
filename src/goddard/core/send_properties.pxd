from goddard.core.sendtypes cimport PairNames, RequestHeader, SendProperties

cdef long long tags_of(const unsigned char* properties, Py_ssize_t length) noexcept nogil


cdef class PropertyReader:
    cdef bint waits_durable
    cdef bytes special_names
    cdef unsigned long long special_lengths
    cdef bytes special_prefix
    cdef PairNames names

    cdef Py_ssize_t read(
        self, RequestHeader* header, unsigned char* out, SendProperties* found
    ) noexcept
    cdef bint _read_pairs(
        self, const unsigned char* text, Py_ssize_t length, SendProperties* found
    ) noexcept
    cdef bint _is_special(self, const unsigned char* name, Py_ssize_t length) noexcept
