# Numbers and bytes in big-endian data, inlined by the compiled modules that cimport them; mypy sees
# stubs/cython/cimports/goddard/core/primitives.pyi. Callers have checked the lengths.
from libc.string cimport memchr


cdef inline int get16(const unsigned char* data) noexcept nogil:
    return <int> data[0] << 8 | data[1]


cdef inline int get32(const unsigned char* data) noexcept nogil:
    cdef unsigned int value = data[0]
    value = value << 8 | data[1]
    value = value << 8 | data[2]
    value = value << 8 | data[3]
    return <int> value


cdef inline long long get64(const unsigned char* data) noexcept nogil:
    cdef unsigned long long high = <unsigned int> get32(data)
    return <long long> (high << 32 | <unsigned int> get32(data + 4))


cdef inline void put16(unsigned char* data, Py_ssize_t value) noexcept nogil:
    data[0] = (value >> 8) & 0xFF
    data[1] = value & 0xFF


cdef inline void put32(unsigned char* data, long long value) noexcept nogil:
    data[0] = (value >> 24) & 0xFF
    data[1] = (value >> 16) & 0xFF
    data[2] = (value >> 8) & 0xFF
    data[3] = value & 0xFF


cdef inline void put64(unsigned char* data, long long value) noexcept nogil:
    put32(data, value >> 32)
    put32(data + 4, value)


cdef inline Py_ssize_t find(const unsigned char* text, Py_ssize_t length, int byte) noexcept nogil:
    """Where a byte is; `length` if it is not there."""
    cdef const unsigned char* found
    if length <= 0:
        return length
    found = <const unsigned char*> memchr(text, byte, length)
    return length if found == NULL else found - text


cdef inline bytes to_bytes(const unsigned char* data, Py_ssize_t length):
    return (<const char*> data)[:length]
