"""Which batch of which query wrote something: the key of all that is exactly once. Pure."""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

_DATA_FILE: Final = re.compile(r"part-(?P<query>[0-9a-z]+)-(?P<number>\d{10})-\d{5,}\.[\w.]+")


@dataclass(frozen=True, slots=True)
class Batch:
    """``query`` is the same in every run of a stream, ``number`` counts its batches.

    A batch of a stream is done for good when the next begins. One that is no part of a stream may
    be run again at any time.
    """

    query: str
    number: int
    is_of_stream: bool = True

    def file_name(self, index: int, suffix: str) -> str:
        return f"part-{self.query}-{self.number:010d}-{index:05d}.{suffix}"

    def owns(self, file_name: str) -> bool:
        matched = _DATA_FILE.fullmatch(file_name)
        return (
            matched is not None
            and matched["query"] == self.query
            and int(matched["number"]) == self.number
        )

    def follows(self, file_name: str) -> bool:
        """Whether a file is of an earlier batch of the same query."""
        matched = _DATA_FILE.fullmatch(file_name)
        return (
            matched is not None
            and matched["query"] == self.query
            and int(matched["number"]) < self.number
        )


def query_name(query_id: str) -> str:
    """Spark's id of a query, as it is in names of files."""
    return query_id.replace("-", "").lower()


def single(*identity: object) -> Batch:
    """A batch of its own, the same for the same identity."""
    text = "\0".join(str(each) for each in identity)
    return Batch(hashlib.sha256(text.encode()).hexdigest()[:32], 0, is_of_stream=False)
