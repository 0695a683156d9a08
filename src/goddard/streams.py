"""Standard input, output and error of a process that was started with some of them closed.

A file or socket that is opened while descriptor 0, 1 or 2 is free gets that number: what is printed
then goes into it, and libuv aborts the process when it closes such a socket. So a null device is
opened there first. Imports only the standard library.
"""

import os
import sys
from typing import Final

_LAST_STANDARD: Final = 2


def open_standard_descriptors() -> None:
    """Open the null device as each of the descriptors 0, 1 and 2 that is closed."""
    for number in range(_LAST_STANDARD + 1):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, so this one, unless another thread has just taken it.
            opened = os.open(os.devnull, os.O_RDWR)
            if opened > _LAST_STANDARD:
                os.close(opened)
            else:
                os.set_inheritable(opened, True)


def open_standard_streams() -> None:
    """As above, and give ``sys`` streams instead of the None that stands for a closed one."""
    open_standard_descriptors()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(null, mode, encoding="utf-8"))
