"""A server without free file descriptors logs a warning instead of dropping peers silently."""

import subprocess
import sys

# In its own process, because the limit applies to the whole process.
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


def test_a_server_without_descriptors_warns_at_a_limited_rate() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == (
        "new connections are dropped, 0 are open: Too many open files; raise the limit of open "
        "files (ulimit -n)\n"
    )
