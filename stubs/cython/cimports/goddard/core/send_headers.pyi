from goddard.core.send_headers import (
    read_header as read_header,
)
