from goddard.core.sendtypes cimport Text

cdef bint is_text(const unsigned char* text, Py_ssize_t length, bint has_controls) noexcept nogil
cdef bint read_number(Text text, long long most, long long* value) noexcept nogil
cdef Py_ssize_t write_number(unsigned char* out, long long value) noexcept nogil
cdef void write_hex(unsigned char* out, long long value) noexcept nogil
cdef int hash_text(const unsigned char* text, Py_ssize_t length) noexcept nogil
