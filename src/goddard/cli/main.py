"""Entry points: ``goddard``, and RocketMQ's ``mqnamesrv``, ``mqbroker``, ``mqshutdown`` and
``mqadmin``.

They import only the standard library, so that an installation without the extra ``server``
gets one clear line instead of a stack trace.
"""

import importlib
import signal
import sys
from typing import Final

from goddard.extras import missing_extra
from goddard.streams import open_standard_streams

# The exit code of a shell for a process that SIGINT ended.
_EXIT_INTERRUPTED: Final = 130


def main() -> None:
    sys.exit(_run("goddard"))


def mqadmin() -> None:
    """Run a verb of RocketMQ's administration tool."""
    sys.exit(_run("mqadmin"))


def mqnamesrv() -> None:
    """Run the name server as RocketMQ's own command does."""
    sys.exit(_run("mqnamesrv"))


def mqbroker() -> None:
    """Run the broker as RocketMQ's own command does."""
    sys.exit(_run("mqbroker"))


def mqshutdown() -> None:
    """Stop the servers of this machine as RocketMQ's own command does."""
    sys.exit(_run("mqshutdown"))


def _run(program: str) -> int:
    """The exit code of a program; Ctrl-C and missing packages are not reported as crashes."""
    open_standard_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell without job control starts background processes with SIGINT ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        commands = importlib.import_module("goddard.cli.commands")
        return int(commands.run(program))
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except ImportError as error:
        explained = missing_extra(error)
        if explained is None:
            raise
        print(f"{program}: {explained}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    main()
