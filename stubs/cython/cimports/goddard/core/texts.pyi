from goddard.core.texts import (
    hash_text as hash_text,
    is_text as is_text,
    read_number as read_number,
    write_hex as write_hex,
    write_number as write_number,
)
