"""The command ``goddard doctor``."""

from typing import TYPE_CHECKING, Any

import click

from goddard.cli.doctor.checks import CHECKS, chosen_checks, chosen_findings, findings
from goddard.cli.doctor.facts import Facts, Limits
from goddard.cli.doctor.look import Looking
from goddard.cli.doctor.report import FORMATS, exit_code
from goddard.cli.terminal.seconds import Seconds
from goddard.cli.terminal.target import Target, connection_options

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

_DEFAULTS = Limits()
_CHECKS = click.Choice(list(CHECKS))


@click.command()
@connection_options
@click.option(
    "--format",
    "format_name",
    type=click.Choice(list(FORMATS)),
    default="text",
    show_default=True,
    help="Output format; nagios and prometheus are for monitors.",
)
@click.option(
    "--seconds",
    type=Seconds(0, 3600),
    default=3.0,
    show_default=True,
    help="Time between two readings; growing lags and restarts are found by comparing them.",
)
@click.option(
    "--max-lag",
    type=click.IntRange(0),
    default=_DEFAULTS.max_lag,
    show_default=True,
    help="A larger lag of a group is a warning.",
)
@click.option(
    "--max-message",
    type=click.IntRange(1),
    default=_DEFAULTS.message_bytes,
    show_default=True,
    help="Larger messages, in bytes, are a warning.",
)
@click.option(
    "--check",
    "wanted",
    multiple=True,
    type=_CHECKS,
    help="Only this, and what could not be read; repeatable.",
)
@click.option("--skip", "skipped", multiple=True, type=_CHECKS, help="Not this; repeatable.")
def doctor(target: Target, format_name: str, seconds: float, **options: Any) -> None:
    """Look for what is wrong in a cluster, and say what to do.

    Looks at name servers, brokers, topics, groups and clients, and at the processes of the cluster
    on this machine. Changes nothing. The exit code is 0 if nothing was found, 1 for warnings and 2
    for errors.
    """
    limits = Limits(max_lag=options["max_lag"], message_bytes=options["max_message"])

    async def work(admin: "Admin") -> Facts:
        return await Looking(admin).facts(seconds)

    skipped = options["skipped"]
    chosen = chosen_checks(options["wanted"], skipped)
    found = chosen_findings(findings(target.run(work), limits), chosen, skipped)
    click.echo(FORMATS[format_name](found, chosen))
    click.get_current_context().exit(exit_code(found))
