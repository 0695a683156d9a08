"""Syncs that the kernel runs by itself: no thread of ours waits for them.

A thread that syncs needs the interpreter's lock before and after, and has to compete for it with
the event loop that it serves. Linux can also run an ``fdatasync`` in a thread of its own
(``io_submit`` with ``IOCB_CMD_FDSYNC``) and report the end by an eventfd, which a loop watches like
a socket. The calls have no wrapper in libc, so they are made by number.
"""

import ctypes
import errno
import os
import platform
import sys
from contextlib import suppress
from typing import Final, Protocol

# io_setup, io_destroy, io_submit, io_getevents
_CALLS: Final = {
    "x86_64": (206, 207, 209, 208),
    "aarch64": (0, 1, 2, 4),
}
_FDSYNC: Final = 3  # IOCB_CMD_FDSYNC, since Linux 4.18
_NOTIFY: Final = 1  # IOCB_FLAG_RESFD


class Syncs(Protocol):
    """One sync at a time. ``result`` may be called in any thread, the rest by the loop."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when a sync has ended."""

    def clear(self) -> None:
        """Make the descriptor unreadable. Call it before ``result``."""

    def start(self, fd: int) -> bool:
        """Start to sync the data of a file; False if this cannot be done for it."""

    def result(self, *, wait: bool) -> int | None:
        """The error number of the sync that was started, 0 for success; None if it still runs."""

    def close(self) -> None: ...


class _Request(ctypes.Structure):
    """``struct iocb`` of a little-endian machine."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("position", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_fd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """``struct io_event``."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class KernelSyncs:
    """Syncs by Linux's asynchronous I/O; see ``Syncs``."""

    def __init__(self, context: ctypes.c_ulong, calls: tuple[int, int, int, int]) -> None:
        _, self._destroy, self._submit, self._get_events = calls
        self._context = context
        # PyDLL keeps the interpreter's lock: these calls do not wait.
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call_unlocked = ctypes.CDLL(None, use_errno=True).syscall
        self._event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._request = _Request(opcode=_FDSYNC, flags=_NOTIFY, event_fd=self._event_fd)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._event = _Event()
        self._event_pointer = ctypes.byref(self._event)
        self._one = ctypes.c_long(1)
        self._none = ctypes.c_long(0)
        self._no_time = (ctypes.c_long * 2)()  # a struct timespec

    def fileno(self) -> int:
        return self._event_fd

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._event_fd)

    def start(self, fd: int) -> bool:
        self._request.fd = fd
        return int(self._call(self._submit, self._context, self._one, self._requests)) == 1

    def result(self, *, wait: bool) -> int | None:
        count = self._get(wait=wait)
        while count < 0:
            code = ctypes.get_errno()
            if code != errno.EINTR:
                return code
            count = self._get(wait=wait)
        return None if count == 0 else -int(self._event.result)

    def _get(self, *, wait: bool) -> int:
        call, least = self._call, self._none
        time: ctypes.Array[ctypes.c_long] | None = self._no_time
        if wait:
            call, least, time = self._call_unlocked, self._one, None
        pointer = self._event_pointer
        return int(call(self._get_events, self._context, least, self._one, pointer, time))

    def close(self) -> None:
        """Waits for a sync that runs."""
        self._call_unlocked(self._destroy, self._context)
        os.close(self._event_fd)


def open_kernel_syncs() -> KernelSyncs | None:
    """None where the kernel, or a sandbox, does not offer them."""
    calls = _CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    context = ctypes.c_ulong(0)
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(calls[0], ctypes.c_long(1), ctypes.byref(context)) != 0:
        return None
    return KernelSyncs(context, calls)
