# Types of goddard.core.columns; mypy sees stubs/cython/cimports/goddard/core/columntypes.pyi.

# One record; positions are counted from its first byte.
cdef struct RowLayout:
    const unsigned char* start
    int store_time_at
    int store_host_at
    int reconsume_at        # reconsume times, then the offset of the prepared transaction
    int body_at
    int body_bytes
    int topic_at
    int topic_bytes
    int properties_at
    int properties_bytes

# One property of a record.
cdef struct Pair:
    const unsigned char* name
    const unsigned char* value
    int name_bytes
    int value_bytes

cdef struct Pairs:
    Pair at[64]
    int count

ctypedef RowLayout* RowLayouts
ctypedef Pairs* PairsPointer
