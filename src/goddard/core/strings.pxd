# Access to the characters of texts; mypy sees stubs/cython/cimports/goddard/core/strings.pyi.
cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object text)
    bint PyUnicode_IS_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    unsigned char* PyUnicode_1BYTE_DATA(object text)
    str PyUnicode_New(Py_ssize_t length, Py_UCS4 max_char)
