"""Running ``mqadmin VERB``: finding the verb, its help, its errors and its exit code.

The modules of verbs are imported when a verb runs, so that each starts in a fraction of a second.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from goddard.cli.mqadmin.access_control import verbs as access_control_verbs
from goddard.cli.mqadmin.declare import Verb, all_flags
from goddard.cli.mqadmin.messaging import verbs as messaging_verbs
from goddard.cli.mqadmin.options import Options, parse
from goddard.cli.mqadmin.servers import verbs as server_verbs
from goddard.cli.terminal.groups import did_you_mean
from goddard.cli.terminal.mistakes import REPORTED, WrongUsageError, explained, print_error
from goddard.cli.terminal.output import Format, Output
from goddard.cli.terminal.target import Target, chosen_context
from goddard.contexts import Context

VERBS: Final = messaging_verbs.VERBS + server_verbs.VERBS + access_control_verbs.VERBS

_PROGRAM: Final = "mqadmin"
_TIMEOUT_MS: Final = 5_000
_NAME_WIDTH: Final = 35


def run(words: list[str]) -> int:
    """Run a command line; returns the exit code. Errors are one line on standard error."""
    name = _PROGRAM
    try:
        if not words or words[0] in ("-h", "--help") or words == ["help"]:
            click.echo("\n".join(overview()))
            return 0
        verb = find(words[1] if words[0] == "help" else words[0])
        name = f"{_PROGRAM} {verb.name}"
        if words[0] == "help":
            click.echo("\n".join(verb_help(verb)))
            return 0
        options = parse(verb, words[1:])
        if "h" in options:
            click.echo("\n".join(verb_help(verb)))
            return 0
        if options.ignored:
            click.echo(f"{name}: ignored: {' '.join(options.ignored)}", err=True)
        _run(verb, options)
    except click.ClickException as error:
        print_error(name, error)
        return error.exit_code
    return 0


def find(name: str) -> Verb:
    """The verb of a name, in any case, or of an alias; WrongUsageError suggests a similar one."""
    wanted = name.lower()
    for verb in VERBS:
        if wanted in (verb.name.lower(), verb.alias.lower()):
            return verb
    similar = did_you_mean(wanted, [verb.name.lower() for verb in VERBS])
    for verb in VERBS:
        similar = similar.replace(f" {verb.name.lower()}?", f" {verb.name}?")
    raise WrongUsageError(f"there is no verb {name}{similar or '; mqadmin help lists all'}")


def overview() -> Iterator[str]:
    """All verbs."""
    yield "Usage: mqadmin VERB [OPTIONS]"
    yield ""
    for verb in VERBS:
        yield f"   {verb.name:<{_NAME_WIDTH}} {verb.help}"
    yield ""
    yield "'mqadmin help VERB' describes a verb."


def verb_help(verb: Verb) -> Iterator[str]:
    """The options of a verb."""
    yield f"Usage: mqadmin {verb.name} [OPTIONS]"
    yield ""
    yield verb.help
    yield ""
    rows = []
    for one in all_flags(verb):
        names = f"-{one.short}, --{one.long}" if one.short else f"    --{one.long}"
        text = f"{one.help} Required." if one.is_required else one.help
        rows.append((f"{names} VALUE" if one.takes_value else names, text))
    width = max(len(names) for names, _ in rows)
    for names, text in rows:
        yield f"  {names:<{width}}  {text}"
    for group in verb.one_of:
        yield f"\nOne of {', '.join(f'-{name}' for name in group.split())} must be given."


def _run(verb: Verb, options: Options) -> None:
    module, _, name = verb.function.rpartition(".")
    function = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    if verb.is_local:
        try:
            function(options)
        except BrokenPipeError:
            raise
        except REPORTED as error:
            raise explained(error) from error
        return
    try:
        target = Target(_context(options), _TIMEOUT_MS, Output(Format.TEXT))
    except REPORTED as error:
        raise explained(error) from error
    call = importlib.import_module(f"{__package__}.call").Call
    target.run(lambda admin: function(call(options, admin, target)))
    sys.stdout.flush()


def _context(options: Options) -> Context:
    """The cluster, with the credentials of RocketMQ's tools.yml if there are no others."""
    context = chosen_context(options.get("n") or None, None)
    keys = _tools_credentials()
    if keys is None or context.access_key is not None:
        return context
    access_key, secret_key, token = keys
    return replace(context, access_key=access_key, secret_key=secret_key, security_token=token)


def _tools_credentials() -> tuple[str, str, str | None] | None:
    """The accessKey and secretKey of ``$ROCKETMQ_HOME/conf/tools.yml``, as Java's mqadmin."""
    home = os.environ.get("ROCKETMQ_HOME")
    path = Path(home) / "conf" / "tools.yml" if home else None
    if path is None or not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WrongUsageError(f"{path} is not UTF-8 text") from error
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and not line.startswith((" ", "#", "-")):
            found[name.strip()] = value.partition(" #")[0].strip().strip("\"'")
    if not found.get("accessKey") or not found.get("secretKey"):
        return None
    return found["accessKey"], found["secretKey"], found.get("securityToken")
