"""The official Java clients, with one method per operation of an application.

    clients = JavaClients(java.client_suite(), namesrv)     # a JVM, shared by many tests
    producer = clients.producer("group")
    (sent,) = producer.send(Outgoing("Topic", b"body", tag="A"))
    with clients.push("readers", "Topic", tags="A") as consumer:
        (delivery,) = consumer.receive(1)

A client runs until it is closed; `close_all` closes all open clients. A verb that fails raises
``ProcessError`` with Java's stack trace.
"""

import json
import time
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from tests.support.java import JavaProgram

T = TypeVar("T")

_names = count()


class Queue(msgspec.Struct, frozen=True):
    """One queue of a topic."""

    topic: str
    broker: str
    queue: int


class Sent(msgspec.Struct, rename="camel"):
    """The result of a send; the ids of a batch are separated by commas."""

    topic: str
    broker: str
    queue: int
    status: str
    id: str
    offset_id: str | None
    offset: int
    outcome: str = ""


class Received(msgspec.Struct, rename="camel"):
    """A message as the client delivers it to the application."""

    topic: str
    body: str
    properties: dict[str, str]
    tag: str | None = None
    keys: str | None = None
    id: str = ""
    offset_id: str | None = None
    broker: str | None = None
    queue: int = -1
    offset: int = -1
    attempt: int = 0
    born_ms: int = 0
    stored_ms: int = 0
    sys_flag: int = 0
    accepted: bool = True

    @property
    def content(self) -> bytes:
        return self.body.encode("latin-1")


class Pulled(msgspec.Struct, rename="camel"):
    """The result of one pull."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Received]


class Outgoing(msgspec.Struct):
    """A message to send; ``shard`` picks the queue, ``properties`` are the user's."""

    topic: str
    body: bytes
    tag: str = ""
    keys: str = ""
    delay_level: int = 0
    shard: int | None = None
    properties: dict[str, str] = {}

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "topic": self.topic,
            "body": self.body.decode("latin-1"),
            "tag": self.tag,
            "keys": self.keys,
            "properties": self.properties,
        }
        if self.delay_level:
            fields["delayLevel"] = self.delay_level
        if self.shard is not None:
            fields["shard"] = self.shard
        return fields


class JavaClients:
    """Opens clients of one version in one JVM."""

    def __init__(self, program: JavaProgram, namesrv: str) -> None:
        self.namesrv = namesrv
        self._program = program
        self._open: list[_Client] = []

    def producer(self, group: str, **options: Any) -> "Producer":
        """``options`` are those of ClientSuiteProducer: transactional, timeoutMs, retries, …"""
        return self._start(Producer, "producer", {"group": group, **options})

    def push(self, group: str, topic: str, **options: Any) -> "PushConsumer":
        """``options``: those of ClientSuitePush, such as tags or sql, orderly, broadcast."""
        settings = {"group": group, "topic": topic, "tags": "*", "answer": "accept", **options}
        return self._start(PushConsumer, "push", settings)

    def pull(self, group: str) -> "PullConsumer":
        return self._start(PullConsumer, "pull", {"group": group})

    def lite_pull(self, group: str, **options: str) -> "LitePullConsumer":
        """With a ``topic`` (and ``tags`` or ``sql``) it subscribes; without, it is assigned."""
        return self._start(LitePullConsumer, "lite", {"group": group, "tags": "*", **options})

    def close_all(self) -> None:
        while self._open:
            self._open[-1].close()

    def end_process(self) -> None:
        """End the JVM at once without notifying any broker; no client can be used afterwards."""
        self._open.clear()
        self._program.close()

    def call(self, verb: str, parameters: dict[str, Any], timeout: float = 60) -> Any:
        return json.loads(self._program.do(verb, json.dumps(parameters), timeout=timeout))

    def forget(self, client: "_Client") -> None:
        self._open.remove(client)

    def _start(self, kind: "type[Client]", verb: str, options: dict[str, Any]) -> "Client":
        client = kind(self, verb, f"{verb}-{next(_names)}")
        self.call(f"{verb}-open", {"name": client.name, "namesrv": self.namesrv, **options})
        self._open.append(client)
        return client


class _Client:
    def __init__(self, clients: JavaClients, verb: str, name: str) -> None:
        self.name = name
        self._clients = clients
        self._verb = verb

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._clients.forget(self)
        self._call("close")

    def _call(self, action: str, /, **parameters: Any) -> Any:
        seconds = parameters.get("timeoutMs", 0) / 1000 + 60
        verb = f"{self._verb}-{action}"
        return self._clients.call(verb, {"name": self.name, **parameters}, timeout=seconds)

    def _call_for(self, kind: type[T], action: str, /, **parameters: Any) -> T:
        return msgspec.convert(self._call(action, **parameters), kind)


Client = TypeVar("Client", bound=_Client)


class Producer(_Client):
    """Sends in every mode, and queries messages."""

    def send(self, *messages: Outgoing, mode: str = "sync") -> list[Sent]:
        """``mode``: sync, async, oneway (no answers), batch (one answer) or transaction."""
        fields = [message.fields() for message in messages]
        return self._call_for(list[Sent], "send", mode=mode, messages=fields)

    def request(self, message: Outgoing, timeout_ms: int) -> Received:
        return self._call_for(Received, "request", message=message.fields(), timeoutMs=timeout_ms)

    def checked(self) -> list[Received]:
        """The half messages that the broker checked."""
        return self._call_for(list[Received], "checked")

    def query(self, topic: str, key: str, *, begin_ms: int = 0) -> list[Received]:
        end_ms = int(time.time() * 1000) + 60_000
        return self._call_for(
            list[Received],
            "query",
            topic=topic,
            key=key,
            count=32,
            beginMs=begin_ms,
            endMs=end_ms,
        )

    def view(self, topic: str, message_id: str) -> Received:
        return self._call_for(Received, "view", topic=topic, id=message_id)


class PushConsumer(_Client):
    """Records all deliveries to its listener."""

    def receive(self, wanted: int, timeout: float = 60) -> list[Received]:
        """All deliveries so far, when there are ``wanted`` or after the timeout."""
        return self._call_for(
            list[Received], "received", count=wanted, timeoutMs=int(timeout * 1000)
        )

    def receive_until(
        self, is_enough: Callable[[list[Received]], bool], timeout: float = 60
    ) -> list[Received]:
        """All deliveries so far, when ``is_enough`` accepts them or after the timeout."""
        deadline = time.monotonic() + timeout
        deliveries = self.receive(0)
        while not is_enough(deliveries) and (left := deadline - time.monotonic()) > 0:
            deliveries = self.receive(len(deliveries) + 1, min(left, 1))
        return deliveries

    def queues(self) -> set[Queue]:
        """The queues assigned to this consumer, of all topics that it subscribes to."""
        return set(self._call_for(list[Queue], "queues"))


class PullConsumer(_Client):
    """Reads queues at offsets that the application manages."""

    def queues(self, topic: str) -> list[Queue]:
        queues = self._call_for(list[Queue], "queues", topic=topic)
        return sorted(queues, key=lambda each: (each.broker, each.queue))

    def offsets(self, queue: Queue) -> tuple[int, int]:
        """The offset of the first message, and the offset of the next message to be stored."""
        return self._call_for(tuple[int, int], "offsets", **_fields(queue))

    def search(self, queue: Queue, timestamp_ms: int) -> int:
        return self._call_for(int, "search", **_fields(queue), timestampMs=timestamp_ms)

    def pull(self, queue: Queue, offset: int, *, tags: str = "*", wanted: int = 32) -> Pulled:
        return self._call_for(
            Pulled, "pull", **_fields(queue), offset=offset, tags=tags, count=wanted
        )

    def begin_waiting(self, queue: Queue, offset: int) -> None:
        """Start a pull with long polling."""
        self._call("begin", **_fields(queue), offset=offset, tags="*", count=32, wait=True)

    def finish_waiting(self, timeout: float = 20) -> Pulled:
        return self._call_for(Pulled, "finish", timeoutMs=int(timeout * 1000))

    def commit(self, queue: Queue, offset: int) -> None:
        """Commit the offset of the group."""
        self._call("commit", **_fields(queue), offset=offset)

    def committed(self, queue: Queue) -> int:
        return self._call_for(int, "committed", **_fields(queue))


class LitePullConsumer(_Client):
    """Polls; commits only on request."""

    def queues(self, topic: str) -> list[Queue]:
        queues = self._call_for(list[Queue], "queues", topic=topic)
        return sorted(queues, key=lambda each: (each.broker, each.queue))

    def assign(self, queues: list[Queue]) -> None:
        self._call("assign", queues=[_fields(queue) for queue in queues])

    def seek(self, queue: Queue, offset: int) -> None:
        self._call("seek", **_fields(queue), offset=offset)

    def search(self, queue: Queue, timestamp_ms: int) -> int:
        return self._call_for(int, "search", **_fields(queue), timestampMs=timestamp_ms)

    def poll(self, wanted: int, timeout: float = 20) -> list[Received]:
        return self._call_for(list[Received], "poll", count=wanted, timeoutMs=int(timeout * 1000))

    def commit(self) -> None:
        self._call("commit")

    def committed(self, queue: Queue) -> int:
        return self._call_for(int, "committed", **_fields(queue))


def _fields(queue: Queue) -> dict[str, Any]:
    return {"topic": queue.topic, "broker": queue.broker, "queue": queue.queue}
