# Types of the compiled modules; mypy sees stubs/cython/cimports/goddard/core/viewtypes.pyi.
ctypedef const unsigned char[::1] Bytes
ctypedef unsigned char[::1] WritableBytes
ctypedef const long long[::1] Numbers
ctypedef long long[::1] WritableNumbers
ctypedef const unsigned int[::1] Hashes
ctypedef const int[::1] Offsets
