"""What an event loop does not offer: free ports, the local address, options, a look at a byte."""

import asyncio
import socket
import sys
from typing import Final, TypeAlias

Socket: TypeAlias = socket.socket

# An address reserved for documentation. Connecting a UDP socket to it sends nothing, but selects
# the local address for packets to other networks.
_REMOTE: Final = ("192.0.2.1", 9)
_PORT_ATTEMPTS: Final = 20


def local_ip() -> str:
    """This machine's address for connections to others; 127.0.0.1 without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_REMOTE)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def free_port(host: str) -> int:
    """A port that is free together with a broker's VIP port below it and HA port above it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(_PORT_ATTEMPTS):
        with (
            socket.socket(family) as first,
            socket.socket(family) as second,
            socket.socket(family) as third,
        ):
            try:
                first.bind((host, 0))
            except OSError as error:
                text = f"cannot listen on {host}: {error.strerror}"
                raise OSError(error.errno, text) from error
            port: int = first.getsockname()[1]
            try:
                second.bind((host, port - 2))
                third.bind((host, port + 1))
            except OSError:
                continue
            return port
    raise OSError(f"cannot listen on {host}: no three free ports were found")


async def resolve(host: str) -> str:
    """An address of a host, IPv4 before IPv6; OSError or UnicodeError if there is none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


async def listen(host: str, port: int, backlog: int) -> Socket:
    """A listening socket, for ``sock_accept`` of the loop."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, number, _, address = found[0]
    sock = socket.socket(family, kind, number)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def set_acknowledge_timeout(sock: Socket, milliseconds: int) -> None:
    """Let a TCP connection fail when what was sent is not acknowledged for so long (Linux)."""
    if sys.platform == "linux" and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


async def peek_byte(sock: Socket) -> int | None:
    """The first byte from the peer, without consuming it; None if the peer sends nothing."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not readable.done():
            readable.set_result(None)

    while True:
        loop.add_reader(sock, wake)
        try:
            await readable
        finally:
            loop.remove_reader(sock)
        try:
            peeked = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            readable = loop.create_future()
            continue
        return peeked[0] if peeked else None
