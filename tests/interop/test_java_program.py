"""The pipe between the tests and a JVM: the answer is what the verb returned, and nothing else."""

from pathlib import Path

import pytest

from tests.support.java import JavaPeers

pytestmark = pytest.mark.java


@pytest.mark.parametrize("version", ["5.4.0", "4.9.4"])
def test_console_output_of_other_threads_is_not_in_the_answer(tmp_path: Path, version: str) -> None:
    with JavaPeers(version, tmp_path) as java:
        program = java.driver()
        printed = ""
        for number in range(100):
            done = program.ask("echo", f"answer {number}", timeout=60)
            assert (done.outcome, done.answer) == ("ok", f"answer {number}")
            printed += done.printed
        # The other thread wrote while the answers were on their way.
        assert "a log line\n" in printed
