from goddard.core.send_records import (
    RecordWriter as RecordWriter,
    count_batch as count_batch,
)
