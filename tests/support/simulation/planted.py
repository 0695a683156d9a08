"""Defects that the simulator has to find, each a patch of one function of Goddard.

``planted(name)`` is a context in which the defect is there. Nothing in Goddard knows of them.
Most are found within 20 seeds; ``python -m tests.simulation --planted`` says which are not.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import msgspec

from goddard.broker import broker as broker_module
from goddard.broker.consuming.locks import QueueLocks
from goddard.broker.consuming.offsets import Offsets
from goddard.broker.sending import delay, transaction_checks
from goddard.broker.sending.appender import Appender
from goddard.broker.sending.delay import DelayDelivery
from goddard.broker.sending.message_rules import MessageWriter
from goddard.broker.sending.retry import SendBacks
from goddard.broker.sending.send import Sends
from goddard.broker.sending.transaction_checks import TransactionChecks
from goddard.broker.sending.transactions import Transactions
from goddard.client.consume.queue_buffer import ProcessQueue
from goddard.protocol.headers.message import EndTransactionRequest
from goddard.protocol.message import TransactionType
from goddard.replication import slave
from goddard.replication.acknowledgements import Acknowledgements
from goddard.store.log.commitlog import CommitLog
from goddard.store.log.dispatch import Dispatcher
from goddard.store.log.flush import LogFlusher
from goddard.store.log.segment import Segment
from goddard.store.recovery.restore import Restorer

_MASTER_CONNECTION: Final = vars(slave)["_MasterConnection"]

Patch = tuple[object, str, Callable[[Any], Any]]

DEFECTS: Final[dict[str, tuple[str, list[Patch]]]] = {}


def defect(name: str, text: str, *patches: Patch) -> None:
    DEFECTS[name] = text, list(patches)


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Goddard with a defect; ``name`` is a key of DEFECTS."""
    _, patches = DEFECTS[name]
    saved = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
    try:
        for owner, attribute, make in patches:
            setattr(owner, attribute, make(getattr(owner, attribute)))
        yield
    finally:
        for owner, attribute, original in reversed(saved):
            setattr(owner, attribute, original)


def _instead(value: object) -> Callable[[Any], Any]:
    """A function that does nothing but return a value."""
    return lambda original: lambda *_, **__: value


def _each(number: int, other: Callable[..., Any]) -> Callable[[Any], Any]:
    """Every n-th call goes to another function, which gets the original one first."""

    def make(original: Any) -> Any:
        calls = count(1)

        def call(*args: Any, **named: Any) -> Any:
            if next(calls) % number:
                return original(*args, **named)
            return other(original, *args, **named)

        return call

    return make


def _wrap(other: Callable[..., Any]) -> Callable[[Any], Any]:
    """Every call goes to another function, which gets the original one first."""
    return _each(1, other)


async def _nothing(*_: object) -> None:
    """Waits for nothing."""


def _submit_hastily(submit: Any, self: Any, group: Any) -> Any:
    return submit(self, msgspec.structs.replace(group, wait_durable=False))


def _report_hastily(report: Any, self: Any) -> None:
    vars(self)["_is_sync"] = False
    report(self)


def _truncate_more(truncate: Any, self: Any, offset: int) -> Any:
    return truncate(self, max(self.min_offset, offset - 400))


def _repeat_offset(
    append: Any, self: Any, records: Any, offsets: Any, *args: Any, **named: Any
) -> Any:
    entries = append(self, records, offsets, *args, **named)
    last = entries[-1]
    if last.has_queue_entry:
        offsets[last.topic, last.queue_id] -= 1
    return entries


def _skip_offset(
    append: Any, self: Any, records: Any, offsets: Any, *args: Any, **named: Any
) -> Any:
    entries = append(self, records, offsets, *args, **named)
    last = entries[-1]
    if last.has_queue_entry:
        offsets[last.topic, last.queue_id] += 1
    return entries


def _append_twice(
    append: Any, self: Any, records: Any, offsets: Any, *args: Any, **named: Any
) -> Any:
    append(self, records, offsets, *args, **named)
    return append(self, records, offsets, *args, **named)


def _only_note(end: Any, self: Any, request: Any, connection: Any) -> Any:
    header = EndTransactionRequest.decode(request.fields)
    if header.commit_or_rollback == TransactionType.COMMIT:
        self._note(self._find_half(header))
    return request.reply()


def _commit_all(end: Any, self: Any, request: Any, connection: Any) -> Any:
    header = EndTransactionRequest.decode(request.fields)
    if header.commit_or_rollback == TransactionType.ROLLBACK:
        request.ext_fields["commitOrRollback"] = str(int(TransactionType.COMMIT))
    return end(self, request, connection)


def _newest(remove: Any, self: Any, messages: Any) -> Any:
    messages = list(messages)
    remove(self, messages)
    return max(message.queue_offset for message in messages) + 1


# The disk

defect(
    "no fsync",
    "The log is never synced",
    (Segment, "sync", _instead(None)),
    (Segment, "start_sync", _instead(False)),
)
defect(
    "ack before fsync",
    "Sends are answered when they are appended, not when they are on the disk",
    (
        Appender,
        "_submit",
        _wrap(
            lambda submit, self, group: submit(
                self, msgspec.structs.replace(group, wait_durable=False)
            )
        ),
    ),
)
defect(
    "failed fsync forgotten",
    "After a failed sync the data is not written again before the next one",
    (LogFlusher, "_rewrite", _instead(None)),
)
defect(
    "log cut too early",
    "Recovery cuts more of the log than its incomplete end",
    (
        CommitLog,
        "truncate",
        _wrap(_truncate_more),
    ),
)

# The offsets and queues of the store

defect(
    "lost dispatch",
    "Of every 300th group of records no queue learns",
    (Dispatcher, "apply", _each(300, lambda apply, self, placed: None)),
)


defect(
    "offset given twice",
    "After every 100th append the queue's next offset goes back by one",
    (CommitLog, "append", _each(100, _repeat_offset)),
)


defect(
    "offset left out",
    "After every 100th append the queue's next offset is one too high",
    (CommitLog, "append", _each(100, _skip_offset)),
)


defect(
    "stored twice",
    "Every 100th group of records is appended twice",
    (CommitLog, "append", _each(100, _append_twice)),
)
defect(
    "queues not rebuilt",
    "After a crash the queues are not brought up to the end of the log",
    (Restorer, "_dispatch", _wrap(lambda dispatch, self, group, report: group.clear())),
)

# Sending

defect(
    "ack on flush timeout",
    "A send whose sync failed or is late is answered with SEND_OK",
    (Sends, "success", _wrap(lambda success, self, *args: success(self, *args[:4]))),
)
defect(
    "commit lost",
    "Every 5th commit of a transaction is noted as done without its message",
    (
        Transactions,
        "handle_end",
        _each(5, _only_note),
    ),
)


defect(
    "rollback commits",
    "Every 5th end of a transaction commits it, also where it is a rollback",
    (Transactions, "handle_end", _each(5, _commit_all)),
)
defect(
    "no checks",
    "Producers are never asked about halves without a decision",
    (TransactionChecks, "ask", _instead(None)),
)
defect(
    "checks too early",
    "Producers are asked about a half before it can be found",
    (
        TransactionChecks,
        "ask_when_visible",
        _wrap(lambda _, self, half, renewed, entry: self.ask(half, renewed, entry)),
    ),
)
defect(
    "checks noted before the disk",
    "Halves that were written again count before they are on the disk",
    (transaction_checks, "wait_durable", lambda _: _nothing),
)
defect(
    "early delivery",
    "Delayed messages are delivered a second early",
    (
        vars(delay)["_Due"],
        "__init__",
        _wrap(lambda init, self, now, ms: init(self, now + 1000, ms)),
    ),
)
defect(
    "delayed message lost",
    "Every 20th delayed message is passed over",
    (DelayDelivery, "_due_record", _each(20, lambda record, self, view: None)),
)
defect(
    "delay noted before the disk",
    "The progress of deliveries is saved before the delivered messages are on the disk",
    (
        DelayDelivery,
        "_advance",
        _wrap(lambda _, self, level: self._table.commit(level.level, level.queue_offset)),
    ),
)

# Consuming

defect(
    "two owners",
    "A lock on a queue is granted although another member has it",
    (
        QueueLocks,
        "lock",
        _wrap(lambda lock, self, group, client, queues, now_ms: list(dict.fromkeys(queues))),
    ),
)
defect(
    "offset too far",
    "Every 10th commit of a group's offset is one too high",
    (
        Offsets,
        "commit",
        _each(
            10,
            lambda commit, self, group, topic, queue_id, offset, peer: commit(
                self, group, topic, queue_id, offset + 1, peer
            ),
        ),
    ),
)
defect(
    "commit behind unfinished",
    "A consumer commits the newest message that it has consumed, not the oldest that it has not",
    (ProcessQueue, "remove", _wrap(_newest)),
)


defect(
    "send-back dropped",
    "A message that a listener refused is answered, and not stored for a retry",
    (SendBacks, "handle", _wrap(lambda handle, self, request, connection: request.reply())),
)
defect(
    "orderly skip",
    "An orderly batch that failed counts as consumed",
    (ProcessQueue, "put_back", _instead(None)),
)


# Halves, delays and replicas

defect(
    "halves visible",
    "Half messages are stored in their own topic at once",
    (broker_module, "as_half", _wrap(lambda _, message: message)),
)
defect(
    "no delay",
    "Delayed messages are stored in their own topic at once",
    (MessageWriter, "with_delay_applied", _wrap(lambda _, self, message: message)),
)
defect(
    "ack without slave",
    "SYNC_MASTER does not wait for its slave",
    (Acknowledgements, "wait", _wrap(lambda _, self, end_offset, done: done(None))),
    (Acknowledgements, "refusal", _instead(None)),
)
defect(
    "ack on slave timeout",
    "A send that the slave does not acknowledge in time is answered with SEND_OK",
    (
        Acknowledgements,
        "_expire",
        _wrap(lambda _, self, wait, needed, timeout_ms: wait.end(None)),
    ),
)
defect(
    "slave reports too early",
    "A slave with SYNC_FLUSH reports what it has written, not what is on its disk",
    (_MASTER_CONNECTION, "_report", _wrap(_report_hastily)),
)
