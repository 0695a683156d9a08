"""Groups of commands: imported when they run, and with suggestions for misspelt names."""

import difflib
import importlib
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import click

HELP_OPTIONS: Final = {"help_option_names": ["-h", "--help"]}


class Lazy(NamedTuple):
    """Where a command is, and its line in the help of its group."""

    module: str
    attribute: str
    help: str


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean X?``, or nothing if no known name is similar."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""


class Group(click.Group):
    """Suggests the most similar command for one that does not exist."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("context_settings", HELP_OPTIONS)
        super().__init__(*arguments, **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            corrected = self._with_options_last(ctx, words, error.option_name)
            if corrected is None:
                raise
            ctx.fail(f"put {error.option_name} after the command: {corrected}")

    def _with_options_last(self, ctx: click.Context, words: list[str], option: str) -> str | None:
        """The command line with its options after the command, if the command has this option."""
        command: click.Command = self
        names, options, rest = ctx.command_path.split(), [], list(words)
        while rest and isinstance(command, click.Group):
            word = rest.pop(0)
            found = command.get_command(ctx, word)
            if found is None:
                options.append(word)
            else:
                names.append(word)
                command = found
        is_known = any(option in parameter.opts for parameter in command.params)
        return shlex.join([*names, *options, *rest]) if is_known else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            ctx.fail(f"No such command '{name}'{hint}")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """Imports a command when it is used, so that each starts in a fraction of a second."""

    def __init__(self, *arguments: Any, lazy: Mapping[str, Lazy], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._lazy.get(cmd_name)
        if lazy is None:
            return None
        command = getattr(importlib.import_module(lazy.module), lazy.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table: the commands themselves would have to be imported.
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._lazy[name].help) for name in sorted(self._lazy)])
