"""The API reference is what its tool writes."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_reference_describes_the_fields_of_results() -> None:
    page = (ROOT / "docs" / "reference" / "types.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert "- `messages: list[ReceivedMessage]`" in sections["FoundMessages"]
    assert "- `queues: Mapping[MessageQueue, ConsumeOffsets]`" in sections["GroupProgress"]
    assert "### lag" in sections["GroupProgress"]
    assert "- `consumer_offset: int" in sections["ConsumeOffsets"]


def test_reference_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.write_reference", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
