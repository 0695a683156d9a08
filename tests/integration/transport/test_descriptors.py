"""A server that has no file descriptors left says so, instead of dropping peers in silence."""

import subprocess
import sys

# In a process of its own: the limit counts for everything in it.
_PROGRAM = """
import asyncio, logging, os, resource
from goddard.transport.handlers import Handlers
from goddard.transport.loop import run
from goddard.transport.server import Server, ServerOptions

told = asyncio.Event()
texts = []

class Listener(logging.Handler):
    def emit(self, record):
        texts.append(record.getMessage())
        told.set()

async def main():
    logging.getLogger("goddard.transport").addHandler(Listener())
    async with Server(ServerOptions(partial_frame_seconds=0.1), Handlers()):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        taken = []
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
        async with asyncio.timeout(60):
            await told.wait()
        for _ in range(10):
            await asyncio.sleep(0.02)
        for descriptor in taken:
            os.close(descriptor)
    print(*texts, sep="\\n")

run(main())
"""


def test_a_server_without_descriptors_warns_once_in_a_while() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == (
        "new connections are dropped, 0 are open: Too many open files; raise the limit of open "
        "files (ulimit -n)\n"
    )
