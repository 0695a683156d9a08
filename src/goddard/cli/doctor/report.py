"""How findings are printed: for people, as JSON, for Nagios and for Prometheus. Pure.

``checks`` are the names of the checks that were chosen.

The exit code is that of Nagios: 0 nothing was found, 1 warnings, 2 errors.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import click

from goddard.cli.doctor.facts import Finding, Severity
from goddard.cli.render import counted
from goddard.cli.terminal.mistakes import one_line

_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
_NAGIOS: Final = ("OK", "WARNING", "CRITICAL")


def exit_code(found: Sequence[Finding]) -> int:
    if any(one.severity is Severity.ERROR for one in found):
        return 2
    return 1 if found else 0


def summary(found: Sequence[Finding]) -> str:
    counts = Counter(one.severity for one in found)
    return ", ".join(counted(counts[one], one.value) for one in Severity)


def text(found: Sequence[Finding], checks: Sequence[str]) -> str:
    """A paragraph for each finding, and what was checked."""
    lines = []
    for one in found:
        label = click.style(one.severity.value, fg=_COLOURS[one.severity], bold=True)
        lines.append(f"{label} {one.check}: {click.style(one_line(one.subject), bold=True)}")
        lines += [f"  {one_line(one.problem)}", f"  to do: {one_line(one.advice)}", ""]
    if found:
        return "\n".join([*lines, summary(found)])
    return click.style("all is well", fg="green") + f"; checked: {', '.join(checks)}"


def as_json(found: Sequence[Finding], checks: Sequence[str]) -> str:
    rows = [
        {
            "check": one.check,
            "severity": one.severity.value,
            "subject": one.subject,
            "problem": one.problem,
            "advice": one.advice,
        }
        for one in found
    ]
    return json.dumps({"findings": rows, "checks": list(checks)}, ensure_ascii=False, indent=2)


def nagios(found: Sequence[Finding], _: Sequence[str]) -> str:
    """The status line with performance data, and a line for each finding."""
    counts = Counter(one.severity for one in found)
    first = f" - {_plain(found[0])}" if found else ""
    status = (
        f"CLUSTER {_NAGIOS[exit_code(found)]} - {summary(found)}{first}"
        f" | errors={counts[Severity.ERROR]};;1 warnings={counts[Severity.WARNING]};1"
    )
    return "\n".join([status, *(f"{one.severity.value}: {_plain(one)}" for one in found)])


def _plain(one: Finding) -> str:
    # The character | begins performance data.
    return one_line(f"{one.check} {one.subject}: {one.problem}").replace("|", "/")


def prometheus(found: Sequence[Finding], checks: Sequence[str]) -> str:
    """Metrics for a text file that an exporter collects."""
    counts = Counter((one.check, one.severity) for one in found)
    done = dict.fromkeys([*checks, *(one.check for one in found)])
    lines = [
        "# HELP goddard_doctor_findings What goddard doctor found, by check and severity.",
        "# TYPE goddard_doctor_findings gauge",
    ]
    lines += [
        f'goddard_doctor_findings{{check="{check}",severity="{severity}"}} '
        f"{counts[check, severity]}"
        for check in done
        for severity in Severity
    ]
    lines += [
        "# HELP goddard_doctor_finding One finding; the value is always 1.",
        "# TYPE goddard_doctor_finding gauge",
    ]
    labels = {(one.check, one.severity.value, _label(one.subject)) for one in found}
    lines += [
        f'goddard_doctor_finding{{check="{check}",severity="{severity}",subject="{subject}"}} 1'
        for check, severity, subject in sorted(labels)
    ]
    return "\n".join(lines)


def _label(value: str) -> str:
    return one_line(value).replace("\\", r"\\").replace('"', r"\"")


FORMATS: Final[Mapping[str, Callable[[Sequence[Finding], Sequence[str]], str]]] = {
    "text": text,
    "json": as_json,
    "nagios": nagios,
    "prometheus": prometheus,
}
