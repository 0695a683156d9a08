"""What another process holds: private memory and descriptors, as Linux tells them."""

from pathlib import Path


def private_bytes(pid: int) -> int:
    """Memory that belongs to the process alone (RssAnon); mapped files are not among it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/{pid}/status has no RssAnon")


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
