from goddard.core.sendtypes cimport RequestHeader

cdef bint read_header(
    const unsigned char* frame, Py_ssize_t size, RequestHeader* header
) noexcept nogil
