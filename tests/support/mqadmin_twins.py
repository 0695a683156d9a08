"""One command by two tools: the official mqadmin on one topic, group or user, ours on its twin."""

import re
from dataclasses import dataclass, replace
from itertools import count

from tests.support.command_line import CommandLine, Result
from tests.support.java import JavaDriver

_NORMALISED: tuple[tuple[str, str], ...] = (
    (r"twin-\d+-(java|ours)", "TWIN"),
    (r"(?<![0-9A-F])[0-9A-F]{32}(?![0-9A-F])", "ID"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?", "TIME"),
    (r"\b\d{13}\b", "TIME"),
    (r"\brt=\d+ms|(?<=queueOffset=)\d+|(?<=RT: )\d+\.\d\d", "NUMBER"),
    (r"(?m)(?<= true ) +\d+$", " NUMBER"),
    # After it has changed something, Java prints the help of these verbs.
    (r"(?s)usage: mqadmin update\w+List .*", ""),
    # The name of a class and a number.
    (r"(?m)^org\.apache\.rocketmq\.common\.PlainAccessConfig@\w+$", ""),
)
_numbers = count(1)


@dataclass(frozen=True)
class Case:
    """A command with {twin}, a name that nothing has yet, and words of the cluster.

    ``before`` are commands of the official tool that prepare each twin, ``after`` one that shows
    its state. ``is_sorted``: Java prints the lines in the order of a hash table. ``refused_by`` has
    the clusters that refuse the verb, and the words of our error.
    """

    command: str
    before: tuple[str, ...] = ()
    after: str = ""
    refused_by: dict[str, str] | None = None
    is_sorted: bool = False


@dataclass(frozen=True)
class BothTools:
    """The official tool and ours at one cluster, and the words that commands may have."""

    namesrv: str
    driver: JavaDriver
    mqadmin: CommandLine
    words: dict[str, str]

    def with_words(self, **words: str) -> "BothTools":
        return replace(self, words={**self.words, **words})

    def twins(self) -> tuple["BothTools", "BothTools"]:
        """For the official tool, and for ours."""
        number = next(_numbers)
        official, ours = f"twin-{number}-java", f"twin-{number}-ours"
        return self.with_words(twin=official), self.with_words(twin=ours)

    def _words(self, command: str) -> list[str]:
        verb, *rest = command.format(**self.words).split()
        return [verb, *rest] if "-n" in rest else [verb, "-n", self.namesrv, *rest]

    def official(self, command: str) -> str:
        return self.driver.admin(*self._words(command))

    def ours(self, command: str) -> Result:
        return self.mqadmin(*self._words(command))


def check_twins(reference: BothTools, subject: BothTools, case: Case, refused: str | None) -> None:
    """Both tools print the same and leave the same state; or the cluster refuses the verb."""
    for command in case.before:
        reference.official(command)
        subject.official(command)
    expected = reference.official(case.command)
    result = subject.ours(case.command)
    if refused is not None:
        assert "Exception" in expected or "CODE" in expected, expected
        assert result.code == 1, result
        assert refused in result.err, result.err
        assert result.err.count("\n") == 1
        return
    assert "\tat " not in expected, expected
    assert (result.code, result.err) == (0, ""), result
    _check_same(result.out, expected, is_sorted=case.is_sorted)
    if case.after:
        _check_same(subject.official(case.after), reference.official(case.after))


def _check_same(actual: str, expected: str, *, is_sorted: bool = False) -> None:
    texts = [normalise(actual), normalise(expected)]
    if is_sorted:
        texts = ["\n".join(sorted(text.splitlines())) for text in texts]
    assert texts[0] == texts[1], "\n---\n".join(texts)


def normalise(text: str) -> str:
    for pattern, replacement in _NORMALISED:
        text = re.sub(pattern, replacement, text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def verbs_of(cases: dict[str, Case]) -> set[str]:
    return {case.command.split()[0] for case in cases.values()}
