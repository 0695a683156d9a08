"""Contexts: named clusters, with their name servers, credentials and TLS files.

They are in ``~/.goddard/contexts.json``, or where GODDARD_CONTEXTS says. Commands and clients read
them. The file has secrets: nobody but its owner may read it, and one that others can read is
refused.
"""

import fcntl
import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from goddard.errors import ConfigError

_OWNER_ONLY: Final = 0o600
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A cluster and how to connect to it. ``tls`` without ``trust`` does not verify servers."""

    name_servers: str
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    tls: bool = False
    trust: str | None = None
    certificate: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name, and the name of the one in use."""

    by_name: Mapping[str, Context] = field(default_factory=dict)
    selected: str | None = None

    def get(self, name: str) -> Context:
        """ConfigError names the known ones if there is no such context."""
        try:
            return self.by_name[name]
        except KeyError:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise ConfigError(f"there is no context {name!r}; known contexts: {known}") from None

    def with_context(self, name: str, context: Context) -> "Contexts":
        """With one context set; the first one is selected."""
        return Contexts({**self.by_name, name: context}, self.selected or name)

    def selecting(self, name: str) -> "Contexts":
        self.get(name)
        return Contexts(self.by_name, name)

    def without(self, name: str) -> "Contexts":
        self.get(name)
        others = {known: context for known, context in self.by_name.items() if known != name}
        return Contexts(others, None if self.selected == name else self.selected)


def contexts_file() -> Path:
    given = os.environ.get("GODDARD_CONTEXTS")
    return Path(given) if given else Path.home() / ".goddard" / "contexts.json"


def load(path: Path) -> Contexts:
    """The contexts of a file; none if there is no file."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read()
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if mode & _OTHERS:
        raise ConfigError(f"{path} can be read by others and has secrets; run chmod 600 {path}")
    try:
        return decode(data)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is not a file of contexts: {error}; correct or delete it") from (
            error
        )


def selected_context() -> Context | None:
    """The context that ``goddard context use`` selected; None if there is none."""
    contexts = load(contexts_file())
    return None if contexts.selected is None else contexts.get(contexts.selected)


def save(path: Path, contexts: Contexts) -> None:
    """Replace the file, readable by its owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(encode(contexts))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink()  # it has secrets
        raise


def change(path: Path, changed: Callable[[Contexts], Contexts]) -> Contexts:
    """Load, change and save the contexts; other processes that do the same wait."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not the file itself, because it is replaced.
    lock = path.with_name(f"{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, _OWNER_ONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        contexts = changed(load(path))
        save(path, contexts)
    finally:
        os.close(descriptor)
    return contexts


def encode(contexts: Contexts) -> bytes:
    value = {
        "selected": contexts.selected,
        "contexts": {
            name: {key: item for key, item in asdict(context).items() if item not in (None, False)}
            for name, context in contexts.by_name.items()
        },
    }
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def decode(data: bytes) -> Contexts:
    """ValueError or TypeError says what is wrong, without the values, which may be secrets."""
    value = _object(json.loads(data), "it")
    by_name = {}
    for name, items in _object(value.get("contexts"), '"contexts"').items():
        by_name[name] = _context(name, _object(items, f"context {name}"))
    selected = value.get("selected")
    if not isinstance(selected, str | None):
        raise TypeError('"selected" is not the name of a context')
    return Contexts(by_name, selected)


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{what} is not a JSON object")
    return value


def _context(name: str, items: dict[str, Any]) -> Context:
    unknown = sorted(set(items) - {item.name for item in fields(Context)})
    if unknown:
        raise ValueError(f"context {name} has the unknown field {unknown[0]}")
    if items.get("name_servers") is None:
        raise ValueError(f"context {name} has no name_servers")
    for key, item in items.items():
        kind, text = (bool, "true or false") if key == "tls" else (str, "a text")
        if item is not None and not isinstance(item, kind):
            raise TypeError(f"{key} of context {name} is not {text}")
    return Context(**items)
