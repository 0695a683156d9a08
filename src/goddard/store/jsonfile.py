"""One JSON document on disk, replaced atomically, with the ``.bak`` that RocketMQ expects.

Replacing: the new text goes to ``<name>.tmp`` and is synced; the current file becomes
``<name>.bak``; the new one takes its place; the directory is synced. At every moment the file or
its ``.bak`` is complete, and a reader (Java too) takes the ``.bak`` when the file is missing,
empty or broken. A file that could not be read never replaces a good ``.bak``.

The dialect is fastjson's: bare integer keys and ``$ref`` are read; what is written is plain JSON
(quoted keys, sorted, indented by tabs), which every RocketMQ reads. One caller at a time per file.
"""

import logging
import re
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from goddard.environment.files import Files, SystemFiles, make_durable_directories
from goddard.errors import ProtocolError, StoreError
from goddard.protocol import fastjson
from goddard.store.errors import disk_errors

_log = logging.getLogger("goddard.store")

# Far more than the offsets of a million queues.
MAX_DOCUMENT_BYTES: Final = 512 * 1024 * 1024

_INDENT: Final = re.compile(rb"\n +")
# A string, or a bare integer key with what precedes it.
_STRING_OR_KEY: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?[0-9]+)(?=\s*:)')


class Origin(Enum):
    """Where a loaded document came from."""

    FILE = "file"
    BACKUP = "backup"
    ABSENT = "absent"


class DocumentError(StoreError):
    """Neither a metadata file nor its ``.bak`` holds a readable document."""


def encode_document(document: dict[str, Any]) -> bytes:
    """Sorted keys, one per line, tabs; null fields are left out by the caller."""
    compact = msgspec.json.encode(document, order="sorted")
    spaced = msgspec.json.format(compact, indent=1)
    # A JSON string cannot hold a raw newline, so every match is indentation.
    return _INDENT.sub(lambda match: b"\n" + b"\t" * (len(match[0]) - 1), spaced)


class JsonFile:
    """A document at ``path``. Its directory is made when the document is first written."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self.backup_path = path.with_name(path.name + ".bak")
        self._files = files or SystemFiles()
        # Only a file known to be complete may become the backup.
        self._is_file_good = False

    def load(self) -> tuple[dict[str, Any], Origin]:
        """The document, from the file or else from its backup; empty when there is neither."""
        document, problem = self._read(self.path)
        self._is_file_good = document is not None
        if document is not None:
            return document, Origin.FILE
        backup, backup_problem = self._read(self.backup_path)
        if backup is not None:
            self._warn_of_backup(problem or "it is missing or empty")
            return backup, Origin.BACKUP
        if problem or backup_problem:
            raise DocumentError(
                f"{self.path} cannot be read: {problem or 'it is missing or empty'}; "
                f"{self.backup_path.name}: {backup_problem or 'missing or empty'}. "
                "Restore one of them, or remove both to start with defaults."
            )
        return {}, Origin.ABSENT

    def load_backup(self, problem: str) -> dict[str, Any] | None:
        """For a reader to whom the file, though JSON, made no sense: it is no backup either."""
        self._is_file_good = False
        backup = self._read(self.backup_path)[0]
        if backup is not None:
            self._warn_of_backup(problem)
        return backup

    def _warn_of_backup(self, problem: str) -> None:
        _log.warning(
            "%s cannot be read: %s; %s is used instead, and changes made after it are lost",
            self.path,
            problem,
            self.backup_path,
        )

    def replace(self, data: bytes) -> None:
        """Make ``data`` the document; durable when this returns."""
        files = self._files
        temporary_path = self.path.with_name(self.path.name + ".tmp")
        with disk_errors("replace", self.path):
            make_durable_directories(files, self.path.parent)
            descriptor = files.open(temporary_path, create=True)
            try:
                files.truncate(descriptor, 0)
                files.pwrite(descriptor, data, 0)
                files.sync(descriptor)
            finally:
                files.close(descriptor)
            if self._is_file_good and files.facts(self.path) is not None:
                files.rename(self.path, self.backup_path)
            files.rename(temporary_path, self.path)
            files.sync_directory(self.path.parent)
        self._is_file_good = True

    def _read(self, path: Path) -> tuple[dict[str, Any] | None, str]:
        """The document, or why there is none; a missing or empty file is just absent."""
        with disk_errors("look at", path):
            facts = self._files.facts(path)
        if facts is None:
            return None, ""
        if facts.size > MAX_DOCUMENT_BYTES:
            return None, f"larger than {MAX_DOCUMENT_BYTES} bytes"
        with disk_errors("read", path):
            descriptor = self._files.open(path, writable=False)
            try:
                data = self._files.pread(descriptor, facts.size, 0)
            finally:
                self._files.close(descriptor)
        if not data.strip():
            return None, ""
        try:
            document = decode_document(data)
        except ProtocolError as error:
            return None, str(error)
        return document, ""


def decode_document(data: bytes) -> dict[str, Any]:
    """Read a metadata file as Java writes it; ProtocolError when it is none."""
    if len(data) > fastjson.MAX_DIALECT_BYTES:
        # The dialect's own parser is for small bodies; the offsets of a big cluster are not small.
        data = _STRING_OR_KEY.sub(_quote_key, data)
    document = fastjson.loads(data)
    if not isinstance(document, dict):
        raise ProtocolError("not a JSON object")
    return document


def _quote_key(match: re.Match[bytes]) -> bytes:
    return match[0] if match[1] is None else match[1] + b'"' + match[2] + b'"'
