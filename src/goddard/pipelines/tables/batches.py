"""Which batch of which query wrote something: the key of all that is exactly once. Pure."""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from goddard.errors import ConfigError

_DATA_FILE: Final = re.compile(r"part-(?P<query>[0-9a-z]+)-(?P<number>\d{10})-\d{5,}\.[\w.]+")


@dataclass(frozen=True, slots=True)
class Batch:
    """``query`` is the same in every run of a stream, ``number`` counts its batches.

    A batch of a stream is done for good when the next begins. One that is no part of a stream may
    be run again at any time. ``ends`` is the JSON of the source's offsets at its end, if known: the
    same number with other offsets is another batch.
    """

    query: str
    number: int
    is_of_stream: bool = True
    ends: str | None = None

    @property
    def ends_digest(self) -> int | None:
        """63 bits of a hash of ``ends``."""
        if self.ends is None:
            return None
        return int.from_bytes(hashlib.sha256(self.ends.encode()).digest()[:8]) >> 1

    def is_written(self, table: str, last: int | None, last_ends: int | None) -> bool:
        """Whether a table has the batch already; ConfigError if it has another in its place.

        ``last`` is the last batch of the query that the table has, and ``last_ends`` the digest of
        its ends, as far as known.
        """
        if last is None or last < self.number:
            return False
        is_other = None not in (last_ends, self.ends) and last_ends != self.ends_digest
        if (last == self.number and is_other) or (last > self.number and self.is_of_stream):
            raise ConfigError(
                f"{table} has the batches of this query up to number {last}, and batch "
                f"{self.number} now has other messages; nothing was written. The checkpoint was "
                "restored from a copy, or files in it were deleted. Continue with the newest "
                "checkpoint, or with a new one and startingOffsets where the table ends"
            )
        return True

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
    """A batch that is no part of a stream, the same for the same identity."""
    text = "\0".join(str(each) for each in identity)
    return Batch(hashlib.sha256(text.encode()).hexdigest()[:32], 0, is_of_stream=False)
