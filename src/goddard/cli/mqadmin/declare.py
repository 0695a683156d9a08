"""What a verb of mqadmin is: its name, its flags and its function, declared once. Pure.

The tables of verbs are made of these values; parsing, help, documentation and tests read them.
"""

from typing import NamedTuple


class Flag(NamedTuple):
    """An option of a verb, with Java's names. ``short`` is empty if it has only a long name."""

    short: str
    long: str
    help: str
    takes_value: bool
    is_required: bool

    @property
    def key(self) -> str:
        """The name that functions use."""
        return self.short or self.long

    @property
    def title(self) -> str:
        """How messages name it, such as ``-t (--topic)``."""
        return f"-{self.short} (--{self.long})" if self.short else f"--{self.long}"


def flag(short: str, long: str, text: str) -> Flag:
    """An option with a value."""
    return Flag(short, long, text, takes_value=True, is_required=False)


def needed(short: str, long: str, text: str) -> Flag:
    """An option with a value that must be given."""
    return Flag(short, long, text, takes_value=True, is_required=True)


def switch(short: str, long: str, text: str) -> Flag:
    """An option without a value."""
    return Flag(short, long, text, takes_value=False, is_required=False)


class Verb(NamedTuple):
    """A command of mqadmin.

    ``function`` is ``package.module.name`` below this package. ``one_of`` has groups of flags,
    separated by spaces: exactly one of each group must be given. ``is_local`` verbs read files.
    """

    name: str
    help: str
    function: str
    flags: tuple[Flag, ...]
    one_of: tuple[str, ...] = ()
    alias: str = ""
    is_local: bool = False


HELP = switch("h", "help", "Print this help.")
NAME_SERVERS = flag(
    "n",
    "namesrvAddr",
    "Addresses of the name servers: HOST:PORT;HOST:PORT. Otherwise NAMESRV_ADDR, or the context "
    "that 'goddard context use' selected.",
)


def all_flags(verb: Verb) -> tuple[Flag, ...]:
    """The flags of a verb with those that every verb has, sorted as Java's help is."""
    own = {one.key for one in verb.flags}
    common = tuple(one for one in (HELP, NAME_SERVERS) if one.key not in own)
    return tuple(sorted(common + verb.flags, key=lambda one: one.key.lower()))
