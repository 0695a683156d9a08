"""Write the terminal pictures of the guide, docs/img/*.svg, from commands on a real cluster.

Each command runs at a pseudo-terminal; what it prints, colours included, becomes an SVG. The
cluster has two brokers, some topics and groups, traffic, a group that lags and dead letters.
"""

import argparse
import fcntl
import html
import io
import logging
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from goddard import Admin, ConsumeContext, Message, Producer, PushConsumer, ReceivedMessage
from goddard.client.values import ConsumeFrom
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.wire import query_brokers

IMAGES: Final = Path(__file__).parents[1] / "docs" / "img"
_TIMEOUT_SECONDS: Final = 60
_CHUNK: Final = 65_536
# Where a frame of `goddard top` begins: the cursor goes home.
_FRAME: Final = "\x1b[H"
_NOT_COLOURS: Final = re.compile(r"\x1b(\[\?[0-9;]*[a-zA-Z]|\[[0-9;]*[A-HJKSTf]|[=>])")

_LEADING_BLANKS: Final = re.compile(
    r'(?P<before><text [^>]*?)x="(?P<x>[\d.]+)"(?P<between>[^>]*?)textLength="(?P<width>[\d.]+)"'
    r"(?P<after>[^>]*>)(?P<blanks>(?:&#160;)+)(?P<rest>[^<]+)<"
)

# Pages that show the pictures load nothing from elsewhere.
_REMOTE_FONT: Final = re.compile(r"\n\s*@font-face \{.*?\n\s*\}", re.DOTALL)
_FONT: Final = "Fira Code, monospace"
_FONTS: Final = "Menlo, Consolas, DejaVu Sans Mono, monospace"

_TOPICS: Final = {"orders": 4, "payments": 2, "shipments": 2}
_RATES: Final = {"orders": 220, "payments": 90, "shipments": 25}


def run_at_terminal(
    command: str, namesrv: str, *, columns: int = 100, lines: int = 24, quit_after: float = 0.0
) -> str:
    """What a command prints at a terminal. ``quit_after`` seconds, the key q is pressed."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    program, *arguments = shlex.split(command)
    environment = {**os.environ, "NAMESRV_ADDR": namesrv, "TERM": "xterm-256color"}
    with subprocess.Popen(
        [str(Path(sys.executable).with_name(program)), *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
    ) as process:
        os.close(terminal)
        watchdog = threading.Timer(_TIMEOUT_SECONDS, process.kill)
        watchdog.start()
        try:
            return _read(controller, time.monotonic() + quit_after if quit_after else None)
        finally:
            watchdog.cancel()
            os.close(controller)


def _read(controller: int, quit_at: float | None) -> str:
    parts: list[bytes] = []
    while True:
        left = None if quit_at is None else max(0.0, quit_at - time.monotonic())
        ready, _, _ = select.select([controller], [], [], left)
        if not ready:
            os.write(controller, b"q")
            quit_at = None
            continue
        try:
            data = os.read(controller, _CHUNK)
        except OSError:  # the other end is closed
            data = b""
        if not data:
            return b"".join(parts).decode()
        parts.append(data)


def _without_leading_blanks(found: re.Match[str]) -> str:
    """Some viewers drop the blanks that a text begins with: it begins later instead."""
    width = float(found["width"])
    characters = html.unescape(found["blanks"] + found["rest"])
    blanks = len(html.unescape(found["blanks"]))
    step = width / len(characters)
    x = float(found["x"]) + blanks * step
    return (
        f'{found["before"]}x="{x:g}"{found["between"]}textLength="{width - blanks * step:g}"'
        f"{found['after']}{found['rest']}<"
    )


def save_picture(name: str, title: str, printed: str, *, columns: int = 100) -> None:
    """Write an SVG of what a terminal shows."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    text = _NOT_COLOURS.sub("", printed).replace("\r\n", "\n").rstrip("\n")
    console.print(Text.from_ansi(text), soft_wrap=False)
    path = IMAGES / f"{name}.svg"
    svg = console.export_svg(title=title, theme=MONOKAI, unique_id=name)
    svg = _REMOTE_FONT.sub("", svg).replace(_FONT, _FONTS)
    path.write_text(_LEADING_BLANKS.sub(_without_leading_blanks, svg) + "\n")
    sys.stdout.write(f"{path}\n")


@contextmanager
def busy_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster as it is at work."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder, brokers=2))
        names = {"broker-0", "broker-1"}
        wait_until(lambda: names <= set(query_brokers(cluster.namesrv)), 30, "brokers registered")
        with Admin(cluster.namesrv) as admin:
            for topic, queues in _TOPICS.items():
                admin.create_topic(topic, queues=queues, cluster="DefaultCluster")
            admin.create_group("audit", cluster="DefaultCluster")
        producer = stack.enter_context(Producer("shop", name_servers=cluster.namesrv))
        stop = threading.Event()
        threads = [
            threading.Thread(target=_send, args=(producer, topic, rate, stop), daemon=True)
            for topic, rate in _RATES.items()
        ]
        for group, topic in (("billing", "orders"), ("ledger", "payments"), ("mail", "shipments")):
            stack.enter_context(_consumer(cluster.namesrv, group, topic))
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(stop.set)
        with Admin(cluster.namesrv) as admin:
            admin.skip_accumulated("audit", "orders")
            wait_until(lambda: _dead_letters(admin) > 0, 30, "there are dead letters")
        time.sleep(3)
        yield cluster


def _send(producer: Producer, topic: str, rate: int, stop: threading.Event) -> None:
    number = 0
    while not stop.wait(1 / rate):
        number += 1
        body = b'{"order": %d, "total": "%d.90"}' % (number, number % 90)
        producer.send(Message(topic, body, keys=f"{topic}-{number}", tags="paid"))


def _consumer(namesrv: str, group: str, topic: str) -> PushConsumer:
    def consume(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
        for message in messages:
            if topic == "orders" and message.keys and message.keys[0].endswith("00"):
                context.delay_level = -1
                raise ValueError(f"no such customer: {message.keys[0]}")
            if topic == "payments":
                time.sleep(0.02)

    consumer = PushConsumer(
        group, name_servers=namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, consume_threads=1
    )
    consumer.subscribe(topic)
    consumer.listen(consume)
    return consumer


def _dead_letters(admin: Admin) -> int:
    return sum(topic == "%DLQ%billing" for topic in admin.topics())


def _write_top(namesrv: str) -> None:
    screen = run_at_terminal("goddard top -i 1", namesrv, lines=13, quit_after=5)
    frames = [part for part in screen.split(_FRAME) if part.strip()]
    save_picture("top", "goddard top", frames[-2] if len(frames) > 1 else frames[-1])


def _write_tables(namesrv: str) -> None:
    commands = [
        "goddard topic list",
        "goddard group list --members",
        "goddard group lag billing",
        "goddard dlq show billing --range -1",
    ]
    save_picture("tables", "goddard", _session(commands, namesrv, columns=148), columns=148)


def _write_doctor(namesrv: str) -> None:
    save_picture("doctor", "goddard doctor", _session(["goddard doctor --seconds 2"], namesrv))


def _write_reset(namesrv: str) -> None:
    command = "goddard group reset billing --shift=-20 --dry-run"
    save_picture("reset", "goddard group reset", _session([command], namesrv))


_PICTURES: Final = {
    "top": _write_top,
    "tables": _write_tables,
    "doctor": _write_doctor,
    "reset": _write_reset,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the terminal pictures of the guide.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="all if none is given")
    names = parser.parse_args().names or list(_PICTURES)
    # The listener of the demonstration fails on purpose.
    logging.getLogger("goddard.client").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder, busy_cluster(Path(folder)) as cluster:
        for name in names:
            _PICTURES[name](cluster.namesrv)


def _session(commands: list[str], namesrv: str, *, columns: int = 100) -> str:
    parts = []
    for command in commands:
        printed = run_at_terminal(command, namesrv, columns=columns)
        parts.append(f"\x1b[1;32m$\x1b[0m {command}\n{printed}")
    return "\n".join(parts)


if __name__ == "__main__":
    main()
