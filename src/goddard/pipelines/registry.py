"""Schemas by id, from an HTTP registry with Confluent's interface or from a folder.

A body begins with a zero byte and the id of its writer's schema in four bytes, the most significant
first. Tasks look ids up, so nothing here needs Spark. Schemas never change, and are cached.
"""

import json
import struct
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import fastavro

from goddard.errors import GoddardError

PREFIX_BYTES: Final = 5
_MAX_SCHEMAS: Final = 1_000
_MAX_SCHEMA_BYTES: Final = 1024 * 1024
_TIMEOUT_SECONDS: Final = 10.0
_NOT_FOUND: Final = 404


class RegistryError(GoddardError):
    """The registry does not answer; the task fails, and Spark tries again."""


def schema_id(body: bytes) -> int | None:
    """The id of a body's schema; None if it has no prefix."""
    if len(body) < PREFIX_BYTES or body[0]:
        return None
    (found,) = struct.unpack_from(">I", body, 1)
    return int(found)


class SchemaRegistry:
    """The schemas of an ``http`` or ``https`` URL, or of files ``<id>.avsc`` in a folder."""

    def __init__(self, place: str) -> None:
        self._place = place.rstrip("/")
        self._known: dict[int, Any] = {}

    def schema(self, number: int) -> Any:
        """The schema with an id; None if there is none."""
        if number not in self._known:
            text = self._read(number)
            if text is None:
                # It may be registered later.
                return None
            if len(self._known) >= _MAX_SCHEMAS:
                self._known.clear()
            self._known[number] = _parsed(self._place, number, text)
        return self._known[number]

    def _read(self, number: int) -> str | None:
        if not self._place.startswith(("http://", "https://")):
            path = Path(self._place) / f"{number}.avsc"
            return path.read_text(encoding="utf-8") if path.exists() else None
        url = f"{self._place}/schemas/ids/{number}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
                data = answer.read(_MAX_SCHEMA_BYTES + 1)
        except urllib.error.HTTPError as error:
            if error.code == _NOT_FOUND:
                return None
            raise RegistryError(f"schema registry {url}: {error}") from error
        except OSError as error:
            raise RegistryError(f"schema registry {url}: {error}") from error
        if len(data) > _MAX_SCHEMA_BYTES:
            raise RegistryError(f"schema registry {url}: over {_MAX_SCHEMA_BYTES:,} bytes")
        try:
            return str(json.loads(data)["schema"])
        except (ValueError, LookupError, TypeError) as error:
            raise RegistryError(f"schema registry {url}: no schema in the answer") from error


def _parsed(place: str, number: int, text: str) -> Any:
    try:
        return fastavro.parse_schema(json.loads(text))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise RegistryError(
            f"schema registry {place}: schema {number} is no Avro schema"
        ) from error
