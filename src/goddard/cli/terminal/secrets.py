"""Reading secrets from the environment, the terminal or standard input.

They are no options, because other users of the machine can see the arguments of a process.
"""

import os
import sys

import click

from goddard.cli.terminal.mistakes import WrongUsageError


def read_secret(title: str, variable: str) -> str:
    """A secret such as ``secret key``; WrongUsageError if there is none."""
    given = os.environ.get(variable)
    if given:
        return given
    if sys.stdin.isatty():
        return str(click.prompt(title.capitalize(), hide_input=True, err=True))
    secret = sys.stdin.readline().strip()
    if not secret:
        raise WrongUsageError(f"no {title}; set {variable} or write it to standard input")
    return secret
