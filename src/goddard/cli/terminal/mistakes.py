"""Errors of commands: one line on standard error, and an exit code.

0 success; 1 it failed (a server refused, or something does not exist); 2 the command is wrong and
nothing was sent; 130 Ctrl-C.
"""

import click

from goddard.errors import ConfigError, GoddardError


class _ReportedError(click.ClickException):
    """Remembers the command, because its context is gone when the error is printed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        context = click.get_current_context(silent=True)
        self.command = context.command_path if context is not None else None


class FailedError(_ReportedError):
    """The command was right, but it failed."""

    exit_code = 1


class WrongUsageError(_ReportedError):
    """The command is wrong; nothing was changed."""

    exit_code = 2


def one_line(text: str) -> str:
    """The text without line breaks and other characters that a terminal would act on."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def explained(error: Exception) -> click.ClickException:
    """An error of the client or of the system as an error of a command."""
    if isinstance(error, (ConfigError, TypeError)):
        return WrongUsageError(one_line(str(error)))
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return FailedError(one_line(f"{place}{error.strerror or error}"))
    return FailedError(one_line(str(error) or type(error).__name__))


def is_utf8(text: str) -> bool:
    """Whether an argument was UTF-8; Python reads its other bytes as lone surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def check_texts(context: click.Context) -> None:
    """WrongUsageError if an argument or option of a command that is text is not UTF-8."""
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        texts = value if isinstance(value, tuple) else (value,)
        is_text = parameter.type is click.STRING
        if is_text and not all(is_utf8(one) for one in texts if isinstance(one, str)):
            raise WrongUsageError(f"{parameter.get_error_hint(context)} is not UTF-8 text")


def print_error(program: str, error: click.ClickException) -> None:
    """Print the one line of an error: the command, what is wrong, and where the help is."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    name = program if context is None else context.command_path
    if isinstance(error, _ReportedError):
        name = error.command or program
    text = one_line(error.format_message())
    if context is not None and context.command.get_help_option(context) is not None:
        text = f"{text.rstrip('.')} (see {name} --help)"
    line = f"{click.style(name, bold=True)}: {text}"
    click.echo(line, err=True)


REPORTED = (GoddardError, OSError)
"""The errors that a command reports in one line; any other is a bug in Goddard."""
