"""The README's Spark program runs as it is, with another address and topic, and prints rows."""

import re
import sys
from pathlib import Path

from goddard.testing.process import Process, wait_until
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic

README = Path(__file__).parents[2] / "README.md"
_SECONDS = 200


def test_readme_program_prints_rows(ours: Site, tmp_path: Path) -> None:
    topic = NumberedTopic(ours, "orders")
    topic.fill(8)
    *_, program = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert "127.0.0.1:9876" in program
    assert '"orders"' in program
    program = program.replace("127.0.0.1:9876", ours.namesrv).replace('"orders"', f'"{topic.name}"')
    (tmp_path / "program.py").write_text(program)
    process = Process(
        "README program",
        [sys.executable, str(tmp_path / "program.py")],
        log=tmp_path / "output.log",
        ready="Batch: 0",
        cwd=tmp_path,
        start_timeout=_SECONDS,
    )
    with process:
        process.start()

        def printed_rows() -> list[tuple[int, str]]:
            found = re.findall(r"^\| *(\d+)\| *(even|odd)\|\d{4}-", process.output(), re.MULTILINE)
            return sorted((int(body), tags) for body, tags in found)

        wait_until(lambda: len(printed_rows()) == 8, _SECONDS, "all rows are printed")
        expected = [(number, "odd" if number % 2 else "even") for number in range(8)]
        assert printed_rows() == expected
