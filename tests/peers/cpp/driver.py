"""The C++ client through PyPI's `rocketmq`: requests on stdin, answers on stdout.

Run by the interpreter of a virtual environment with the package. Each line is a JSON object; a body
has one character per byte. The library prints to stdout, so stdout is redirected to stderr and the
answers go to a copy of the original stdout.
"""

import importlib
import json
import os
import sys
import threading
import time
from typing import IO, Any

rocketmq = importlib.import_module("rocketmq.client")
errors = importlib.import_module("rocketmq.exceptions")
ffi = importlib.import_module("rocketmq.ffi")

_ASYNC_TIMEOUT_SECONDS = 15


class Driver:
    """Clients by name; they are kept between requests."""

    def __init__(self) -> None:
        self.producers: dict[str, Any] = {}
        self.consumers: dict[str, tuple[Any, list[dict[str, Any]]]] = {}
        self.arrival = threading.Condition()

    def open_producer(self, name: str, namesrv: str, group: str) -> None:
        producer = rocketmq.Producer(group, timeout=10_000, max_message_size=4 << 20)
        producer.set_namesrv_addr(namesrv)
        producer.start()
        self.producers[name] = producer

    def send(self, name: str, mode: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        producer = self.producers[name]
        created = [_message(fields) for fields in messages]
        if mode == "async":
            return _send_async(producer, created)
        results = []
        for message, fields in zip(created, messages, strict=True):
            if mode == "oneway":
                producer.send_oneway(message)
            elif mode == "ordered":
                results.append(_result(producer.send_orderly(message, fields["shard"])))
            else:
                results.append(_result(producer.send_sync(message)))
        return results

    def close_producer(self, name: str) -> None:
        self.producers.pop(name).shutdown()

    def open_consumer(
        self,
        name: str,
        namesrv: str,
        group: str,
        topic: str,
        expression: str = "*",
        *,
        orderly: bool = False,
        broadcast: bool = False,
    ) -> None:
        models = ffi.MessageModel
        model = models.BROADCASTING if broadcast else models.CLUSTERING
        consumer = rocketmq.PushConsumer(group, orderly=orderly, message_model=model)
        consumer.set_namesrv_addr(namesrv)
        consumer.set_instance_name(name)
        deliveries: list[dict[str, Any]] = []

        def take(message: Any) -> None:
            delivery = _describe(message)
            with self.arrival:
                deliveries.append(delivery)
                self.arrival.notify_all()

        consumer.subscribe(topic, take, expression)
        consumer.start()
        self.consumers[name] = (consumer, deliveries)

    def receive(self, name: str, count: int, seconds: float) -> list[dict[str, Any]]:
        _, deliveries = self.consumers[name]
        with self.arrival:
            self.arrival.wait_for(lambda: len(deliveries) >= count, seconds)
            return list(deliveries)

    def close_consumer(self, name: str) -> None:
        self.consumers.pop(name)[0].shutdown()

    def pull(self, namesrv: str, group: str, topic: str, expression: str) -> list[dict[str, Any]]:
        """All messages of a topic, read by a new pull consumer."""
        consumer = rocketmq.PullConsumer(group)
        consumer.set_namesrv_addr(namesrv)
        consumer.start()
        try:
            return [_describe(message) for message in consumer.pull(topic, expression)]
        finally:
            consumer.shutdown()


def _message(fields: dict[str, Any]) -> Any:
    message = rocketmq.Message(fields["topic"])
    message.set_body(fields["body"].encode("latin-1"))
    message.set_tags(fields.get("tag", ""))
    message.set_keys(fields.get("keys", ""))
    for key, value in fields.get("properties", {}).items():
        message.set_property(key, value)
    if "delayLevel" in fields:
        message.set_delay_time_level(fields["delayLevel"])
    return message


def _send_async(producer: Any, messages: list[Any]) -> list[dict[str, Any]]:
    """Results are in order of completion; a failure is also a result."""
    done: list[dict[str, Any]] = []
    for message in messages:
        producer.send_async(
            message,
            lambda result: done.append(_result(result)),
            lambda problem: done.append({"error": str(problem)}),
        )
    deadline = time.monotonic() + _ASYNC_TIMEOUT_SECONDS
    while len(done) < len(messages) and time.monotonic() < deadline:
        time.sleep(0.01)
    return done


def _result(result: Any) -> dict[str, Any]:
    return {"status": result.status.name, "id": result.msg_id, "offset": result.offset}


def _describe(message: Any) -> dict[str, Any]:
    return {
        "id": message.id,
        "topic": message.topic,
        "tag": _text(message.tags),
        "keys": _text(message.keys),
        "body": message.body.decode("latin-1"),
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "attempt": message.reconsume_times,
        "bornMs": message.born_timestamp,
        "storedMs": message.store_timestamp,
        "colour": _text(message.get_property("colour")),
    }


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def serve(requests: IO[str], answers: IO[str]) -> None:
    driver = Driver()
    for line in requests:
        request = json.loads(line)
        try:
            answer = {"result": getattr(driver, request.pop("do"))(**request)}
        except errors.RocketMQException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    own_stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, own_stdout)
    # Clients that were not closed have threads that would keep the process alive.
    os._exit(0)
