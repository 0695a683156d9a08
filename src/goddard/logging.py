"""A handler of the standard ``logging`` that sends log records to a topic.

Code that logs never waits for the network: records are formatted, put into a bounded queue, and
sent in batches by a thread of the handler. While no broker can be reached the queue fills up; then
new records are dropped and counted.
"""

import atexit
import logging
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final, Unpack

from goddard.client.blocking.producers import Producer
from goddard.client.checks import check_range
from goddard.client.errors import BatchFailedError
from goddard.client.message import Message
from goddard.client.produce.options import ProducerKeywords
from goddard.errors import ConfigError, GoddardError
from goddard.protocol.names import topic_problem

__all__ = ["RocketMQHandler"]

_logger: Final = logging.getLogger("goddard.logging")

# Loggers that the sending itself uses: their records would cause further records without end.
_OWN_LOGGERS: Final = ("goddard", "asyncio")
_BATCH_RECORDS: Final = 256
_MAX_TEXT_CHARS: Final = 256 * 1024
_FIRST_PAUSE_SECONDS: Final = 0.2
_MAX_PAUSE_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 60.0
_WARNING_SECONDS: Final = 60.0
_THREAD: Final = "goddard-log-handler"


class RocketMQHandler(logging.Handler):
    """Sends each log record as a message; the formatted record is its body.

    ::

        logging.getLogger().addHandler(RocketMQHandler("logs", name_servers="localhost:9876"))

    The tag is the name of the level, so consumers can subscribe to ``ERROR || CRITICAL``; ``tag``
    sets another one. The properties ``logger``, ``level`` (a number), ``host`` and ``pid`` are for
    SQL filters. Other keywords are options of the producer.

    Logging never blocks: up to ``capacity`` records wait to be sent, and further ones are dropped.
    ``dropped`` counts them, and those that could not be sent for a minute. The next record that is
    sent is preceded by a warning with their number. After a failure a record may be sent twice.
    ``flush`` and ``close`` wait up to ``close_timeout_ms`` for waiting records. Records of the
    loggers ``goddard`` and ``asyncio`` are not sent, because sending causes them.
    """

    def __init__(
        self,
        topic: str,
        *,
        name_servers: str | None = None,
        group: str = "goddard_log_handler",
        tag: str | None = None,
        level: int | str = logging.NOTSET,
        capacity: int = 10_000,
        close_timeout_ms: int = 5_000,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        super().__init__(level)
        if (problem := topic_problem(topic)) is not None:
            raise ConfigError(problem)
        self.topic = topic
        self._tag = tag
        self._capacity = check_range("capacity", capacity, 1)
        self._close_seconds = check_range("close_timeout_ms", close_timeout_ms, 0) / 1000
        self._group = group
        self._name_servers = name_servers
        self._options = options
        # Checks the options.
        self._new_producer()
        self._host = socket.gethostname()
        self._reset()
        _handlers.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Message] = deque()
        self._sending = 0
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._deadline = 0.0
        self._sent = 0
        self._dropped = 0
        self._reported = 0
        self._last_warning = -_WARNING_SECONDS

    @property
    def sent(self) -> int:
        """How many records brokers acknowledged."""
        return self._sent

    @property
    def dropped(self) -> int:
        """How many records were dropped: the queue was full, or they could not be sent."""
        return self._dropped

    @property
    def waiting(self) -> int:
        """How many records are not acknowledged yet."""
        return len(self._waiting) + self._sending

    def handle(self, record: logging.LogRecord) -> bool:
        """Filter and queue a record, without the lock of the base class.

        ``logging.shutdown`` holds that lock while it flushes, and other threads would wait for it.
        """
        passed: object = self.filter(record)
        if isinstance(passed, logging.LogRecord):
            record = passed
        if passed:
            self.emit(record)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        """Put a record into the queue, or drop it if the queue is full or the handler closed."""
        if record.name.partition(".")[0] in _OWN_LOGGERS:
            return
        try:
            message = self._message(record)
        except Exception:
            self.handleError(record)
            _logger.debug("a log record cannot be formatted", exc_info=True)
            return
        with self._changed:
            if self._is_closed or len(self._waiting) >= self._capacity:
                self._dropped += 1
                return
            self._waiting.append(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
                self._thread.start()
            self._changed.notify()

    def flush(self) -> None:
        """Wait until the records that are waiting are sent, at most ``close_timeout_ms``."""
        with self._changed:
            if self._thread is not threading.current_thread():
                self._changed.wait_for(lambda: not self.waiting, self._close_seconds)

    def close(self) -> None:
        """Send what is waiting, for at most ``close_timeout_ms``, and stop; drops the rest."""
        with self._changed:
            if not self._is_closed:
                self._is_closed = True
                self._deadline = time.monotonic() + self._close_seconds
                self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, self._deadline - time.monotonic()))
            if thread.is_alive():
                self._drop(TimeoutError("the handler was closed before"))
        _handlers.discard(self)
        super().close()

    def restart_after_fork(self) -> None:
        """In a forked child: begin with an empty queue; the parent sends what it had."""
        self._reset()

    def _message(self, record: logging.LogRecord) -> Message:
        text = self.format(record)
        if len(text) > _MAX_TEXT_CHARS:
            text = f"{text[:_MAX_TEXT_CHARS]}... ({len(text)} characters)"
        return self._new_message(text, record.levelname, record.levelno, record.name)

    def _new_message(self, text: str, level: str, number: int, logger: str) -> Message:
        return Message(
            self.topic,
            # Brokers refuse empty bodies.
            text.encode("utf-8", "backslashreplace") or b" ",
            tags=self._tag or _printable(level),
            properties={
                "logger": _printable(logger),
                "level": str(number),
                "host": self._host,
                "pid": str(os.getpid()),
            },
        )

    def _new_producer(self) -> Producer:
        return Producer(self._group, name_servers=self._name_servers, **self._options)

    # The thread

    def _run(self) -> None:
        sender = _Sender(self._new_producer)
        try:
            while batch := self._next_batch():
                self._deliver(sender, batch)
        finally:
            sender.stop()

    def _next_batch(self) -> list[Message]:
        """The next messages; none if the handler is closed and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            count = min(len(self._waiting), _BATCH_RECORDS)
            self._sending = count
            return [self._waiting.popleft() for _ in range(count)]

    def _deliver(self, sender: "_Sender", batch: list[Message]) -> None:
        """Send messages, for at most a minute; drop what is left then."""
        give_up = time.monotonic() + _RETRY_SECONDS
        pause = _FIRST_PAUSE_SECONDS
        while True:
            batch, failure = self._try(sender, batch)
            with self._changed:
                self._sent += self._sending - len(batch)
                self._sending = len(batch)
                self._changed.notify_all()
            if failure is None:
                return
            if not self._wait_to_retry(pause, give_up):
                self._drop(failure)
                return
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _try(
        self, sender: "_Sender", batch: list[Message]
    ) -> tuple[list[Message], Exception | None]:
        """Send messages after a report on those that were dropped; what was not stored, and why."""
        missing = self._dropped - self._reported
        report = [self._report(missing)] if missing else []
        failure: Exception | None = None
        try:
            stored = sender.send([*report, *batch])
        except BatchFailedError as error:
            stored, failure = len(error.results), error
        except GoddardError as error:
            stored, failure = 0, error
        except Exception as error:
            _logger.exception("sending log records failed unexpectedly")
            stored, failure = 0, error
        if stored and report:
            self._reported += missing
        return batch[max(0, stored - len(report)) :], failure

    def _report(self, missing: int) -> Message:
        text = f"{missing} log records were dropped"
        return self._new_message(text, "WARNING", logging.WARNING, _logger.name)

    def _wait_to_retry(self, pause: float, give_up: float) -> bool:
        """Wait before the next try; False if there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, pause)
            limit = self._deadline if self._is_closed else give_up
        # A closed handler has little time left, and needs a pause too.
        if self._is_closed:
            time.sleep(max(0.0, min(_FIRST_PAUSE_SECONDS, limit - time.monotonic())))
        return time.monotonic() < limit

    def _drop(self, failure: Exception) -> None:
        """Count the records that are being sent as dropped, and those waiting after the close."""
        with self._changed:
            count = self._sending
            self._sending = 0
            if self._is_closed:
                count += len(self._waiting)
                self._waiting.clear()
            self._dropped += count
            self._changed.notify_all()
        now = time.monotonic()
        if now - self._last_warning >= _WARNING_SECONDS:
            self._last_warning = now
            _logger.warning("%d log records could not be sent: %s", count, failure)


class _Sender:
    """A producer that starts with the first batch, and is replaced if it cannot start."""

    def __init__(self, new_producer: Callable[[], Producer]) -> None:
        self._new_producer = new_producer
        self._producer: Producer | None = None

    def send(self, messages: list[Message]) -> int:
        """Send messages; how many."""
        if self._producer is None:
            producer = self._new_producer()
            producer.start()
            self._producer = producer
        return len(self._producer.send_batch(messages))

    def stop(self) -> None:
        if self._producer is not None:
            self._producer.stop()


def _printable(text: str) -> str:
    """A text that tags and properties accept."""
    return "".join(char if char.isprintable() else "?" for char in text) or "-"


_handlers: Final[weakref.WeakSet[RocketMQHandler]] = weakref.WeakSet()


def _close_all() -> None:
    """Before the clients of this process are stopped, which is before logging.shutdown."""
    for handler in list(_handlers):
        handler.close()


def _after_fork() -> None:
    for handler in list(_handlers):
        handler.restart_after_fork()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
