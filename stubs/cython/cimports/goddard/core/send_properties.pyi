from goddard.core.send_properties import (
    PropertyReader as PropertyReader,
    tags_of as tags_of,
)
