"""Which implementations this installation uses, where there is more than one."""

from goddard.core import IS_COMPILED
from goddard.protocol.hashing import crc32
from goddard.transport.loop import IMPLEMENTATION


def implementations() -> str:
    """The core, the event loop and the CRC-32, in one line."""
    core = "compiled" if IS_COMPILED else "Python"
    crc = crc32.__module__.partition(".")[0]
    return f"core: {core}, event loop: {IMPLEMENTATION}, CRC-32: {crc}"
