"""Run ``goddard`` commands in this process, as the shell would: output, errors and exit code."""

import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

from goddard.cli import commands


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def json_lines(self) -> list[Any]:
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]


class CommandLine:
    """Commands with fixed environment variables; ``program`` may be mqadmin."""

    def __init__(self, env: dict[str, str | None], program: str = "goddard") -> None:
        self._env = {"NAMESRV_ADDR": None, "GODDARD_CONTEXTS": "/nonexistent/contexts.json", **env}
        self._program = program

    def __call__(self, *arguments: str, stdin: str | bytes = "") -> Result:
        with (
            CliRunner().isolation(stdin, env=self._env) as streams,
            patch.object(sys, "argv", [self._program, *arguments]),
        ):
            code = commands.run(self._program)
            out, err = (stream.getvalue().decode() for stream in streams[:2])
        return Result(code, out.replace("\r\n", "\n"), err.replace("\r\n", "\n"))

    def json(self, *arguments: str) -> Any:
        return self(*arguments, "--format", "json").json()
