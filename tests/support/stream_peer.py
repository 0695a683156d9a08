"""A remoting peer on a real socket that writes arbitrary bytes and records the responses."""

import asyncio
from collections.abc import Iterable
from typing import Self

from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from goddard.transport.client import split_address

_READ_BYTES = 1 << 18


class StreamPeer:
    """One connection: ``answers`` by opaque, and the ``requests`` of the other end, unanswered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self.answers: dict[int, RemotingCommand] = {}
        self.requests: list[RemotingCommand] = []
        self.is_closed = False

    @classmethod
    async def connect(cls, address: str) -> Self:
        return cls(*await asyncio.open_connection(*split_address(address)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    async def receive(self, opaques: Iterable[int]) -> None:
        """Read until all of these are answered or the other end closes."""
        missing = set(opaques) - self.answers.keys()
        while missing and not self.is_closed:
            try:
                data = await self._reader.read(_READ_BYTES)
            except ConnectionError:
                data = b""
            self.is_closed = not data
            for frame in self._decoder.feed(data):
                answer = decode_frame(frame)
                if answer.is_response:
                    self.answers[answer.opaque] = answer
                    missing.discard(answer.opaque)
                else:
                    self.requests.append(answer)

    async def ask(
        self, request: RemotingCommand, timeout_seconds: float = 10
    ) -> RemotingCommand | None:
        """The response; None if the other end closed the connection."""
        self.write(encode_frame(request))
        async with asyncio.timeout(timeout_seconds):
            await self.receive([request.opaque])
        return self.answers.get(request.opaque)
