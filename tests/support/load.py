"""Load that can be checked for lost messages and order, across broker crashes and restarts.

``KeyedSender`` numbers the messages of each key. It retries each message until it is acknowledged
and only then sends the next one, so the first copies of a key's messages are in the log in order.
``KeyedReader`` reads the queues as consumers do and checks the messages.
"""

import asyncio
import zlib
from collections import defaultdict
from typing import Final

from goddard.errors import GoddardError
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.record import iter_records
from goddard.transport.client import Client
from tests.support.consumer_harness import pull_fields
from tests.support.send_harness import send_request

REQUEST_TIMEOUT_MS: Final = 5_000
_WAIT_MS: Final = 2_000
_WAIT_AND_COMMIT: Final = 0x1 | 0x2 | 0x4
_PAUSE_SECONDS: Final = 0.01


def queue_of(key: str, queues: int) -> int:
    """The queue of all messages of a key."""
    return zlib.crc32(key.encode()) % queues


class KeyedSender:
    """Sends messages of each key continuously until it is cancelled or stopped."""

    def __init__(
        self, client: Client, address: str, topic: str, *, queues: int, keys: int = 16
    ) -> None:
        self._client = client
        self.address = address
        self._topic = topic
        self._queues = queues
        self._keys = [f"key-{number}" for number in range(keys)]
        self._stopping = False
        # Number of acknowledged messages of each key.
        self.acknowledged: dict[str, int] = dict.fromkeys(self._keys, 0)
        self.attempts = 0
        self.rejections: dict[int, int] = defaultdict(int)

    def count(self) -> int:
        """Messages acknowledged so far."""
        return sum(self.acknowledged.values())

    def stop(self) -> None:
        """Send no new messages; pending ones are still retried until they are acknowledged."""
        self._stopping = True

    async def run(self) -> None:
        await asyncio.gather(*map(self._send_key, self._keys))

    async def _send_key(self, key: str) -> None:
        queue_id = str(queue_of(key, self._queues))
        started = 0
        while not self._stopping or started > self.acknowledged[key]:
            number = self.acknowledged[key]
            started = number + 1
            request = send_request(
                self._topic,
                f"{key}:{number}".encode(),
                e=queue_id,
                properties=f"KEYS\x01{key}\x02UNIQ_KEY\x01{key}-{number}\x02",
            )
            if await self._is_acknowledged(request):
                self.acknowledged[key] = number + 1
            else:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _is_acknowledged(self, request: RemotingCommand) -> bool:
        self.attempts += 1
        try:
            answer = await self._client.request(self.address, request, REQUEST_TIMEOUT_MS)
        except (GoddardError, OSError):
            return False
        if answer.code != ResponseCode.SUCCESS:
            self.rejections[answer.code] += 1
        return answer.code == ResponseCode.SUCCESS


class KeyedReader:
    """A consumer that reads every queue with long polling and commits offsets.

    It begins at the committed offsets, or at ``first_offset``.
    """

    def __init__(
        self,
        client: Client,
        address: str,
        topic: str,
        *,
        queues: int,
        first_offset: int | None = None,
    ) -> None:
        self._client = client
        self.address = address
        self._topic = topic
        self._offsets: dict[int, int | None] = dict.fromkeys(range(queues), first_offset)
        self._next: dict[str, int] = defaultdict(int)
        self.bodies: dict[tuple[int, int], bytes] = {}
        self.received = 0
        # Violations: messages out of order, or a different message at an offset read before.
        self.faults: list[str] = []

    def count(self) -> int:
        """The number of distinct messages received."""
        return sum(self._next.values())

    @property
    def read(self) -> dict[str, int]:
        """The number of messages of each key that were received, in order."""
        return dict(self._next)

    @property
    def stored_twice(self) -> int:
        """The number of duplicates in the log, sent because a response was lost."""
        return len(self.bodies) - self.count()

    @property
    def redelivered(self) -> int:
        """The number of messages read again because the committed offset was lost or old."""
        return self.received - len(self.bodies)

    def forget_offsets(self) -> None:
        """Continue at the committed offsets, like a restarted consumer."""
        self._offsets = dict.fromkeys(self._offsets)

    async def run(self) -> None:
        await asyncio.gather(*map(self._read_queue, self._offsets))

    async def _read_queue(self, queue_id: int) -> None:
        while True:
            try:
                is_alive = await self._read_once(queue_id)
            except (GoddardError, OSError):
                is_alive = False
            if not is_alive:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _read_once(self, queue_id: int) -> bool:
        queue_offset = self._offsets[queue_id]
        if queue_offset is None:
            queue_offset = await self._committed(queue_id)
            self._offsets[queue_id] = queue_offset
        fields = pull_fields(
            self._topic,
            queue_offset,
            queueId=queue_id,
            sysFlag=_WAIT_AND_COMMIT,
            commitOffset=queue_offset,
            suspendTimeoutMillis=_WAIT_MS,
        )
        answer = await self._ask(RequestCode.PULL_MESSAGE, fields)
        if self._offsets[queue_id] != queue_offset:
            return True  # forget_offsets() was called in the meantime
        if answer.code == ResponseCode.SUCCESS:
            for record in iter_records(answer.body):
                self._take(queue_id, record.queue_offset, bytes(record.body))
            self._offsets[queue_id] = int(answer.fields["nextBeginOffset"])
        elif answer.code != ResponseCode.PULL_NOT_FOUND:
            self._note(f"pull of queue {queue_id} at {queue_offset}: {answer.code} {answer.remark}")
            return False
        return True

    async def _committed(self, queue_id: int) -> int:
        fields = {"consumerGroup": "G", "topic": self._topic, "queueId": queue_id}
        answer = await self._ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        return int(answer.fields["offset"]) if answer.code == ResponseCode.SUCCESS else 0

    async def _ask(self, code: int, fields: dict[str, object]) -> RemotingCommand:
        texts = {name: str(value) for name, value in fields.items()}
        command = RemotingCommand(code, texts)
        return await self._client.request(self.address, command, REQUEST_TIMEOUT_MS + _WAIT_MS)

    def _take(self, queue_id: int, queue_offset: int, body: bytes) -> None:
        self.received += 1
        place = (queue_id, queue_offset)
        before = self.bodies.setdefault(place, body)
        if before != body:
            self._note(f"{place} was {before!r} and is now {body!r}")
        key, _, number_text = body.decode().partition(":")
        number = int(number_text)
        if number > self._next[key]:
            self._note(f"{key} jumps from {self._next[key] - 1} to {number} at {place}")
        self._next[key] = max(self._next[key], number + 1)

    def _note(self, fault: str) -> None:
        if len(self.faults) < 20:
            self.faults.append(fault)
