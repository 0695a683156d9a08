"""``goddard user`` and ``goddard acl``: access control, which Goddard's brokers do not have yet."""

import click

from goddard.cli.terminal.groups import HELP_OPTIONS
from goddard.cli.terminal.mistakes import FailedError

_ANY = {**HELP_OPTIONS, "ignore_unknown_options": True, "allow_extra_args": True}
_TEXT = "access control is not supported by Goddard's brokers yet"


@click.command(context_settings=_ANY)
def user() -> None:
    """Not supported yet: users of the brokers' access control."""
    raise FailedError(f"{_TEXT}; for RocketMQ's brokers use goddard.Admin or mqadmin createUser")


@click.command(context_settings=_ANY)
def acl() -> None:
    """Not supported yet: rules of the brokers' access control."""
    raise FailedError(f"{_TEXT}; for RocketMQ's brokers use goddard.Admin or mqadmin createAcl")
