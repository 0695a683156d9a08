"""What a process does once so that a broker in it runs fast: collector, interpreter, allocator.

These are settings of the whole process, so the command that starts a broker makes them; a program
that runs a ``Broker`` among other things decides for itself.
"""

import ctypes
import gc
import sys
from typing import Final

# Messages come and go as objects without cycles; looking for cycles costs more than it finds.
_GC_THRESHOLDS: Final = (100_000, 50, 100)
# The store's worker that fills the key index would keep the loop waiting for 5 ms at a time.
_SWITCH_SECONDS: Final = 0.0005
# Of glibc's mallopt. By default every chunk of some 100 KB that is received, and every group that
# is written, is fresh memory from the kernel, which clears each page of it first.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 16 * 1024 * 1024


def tune_process() -> None:
    """Call it when everything is imported."""
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.freeze()
    sys.setswitchinterval(_SWITCH_SECONDS)
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
            mallopt(_M_TRIM_THRESHOLD, 2 * _KEPT_BYTES)
