"""The lite pull consumer for threads and scripts.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self, Unpack

from goddard.client.blocking import BlockingClient
from goddard.client.consume.allocation import AllocationStrategy
from goddard.client.consume.lite import LitePullConsumer as AsyncLitePullConsumer
from goddard.client.consume.queue_changes import AssignmentListener, QueuesListener
from goddard.client.consume.subscriptions import Expression
from goddard.client.listeners.hooks import ConsumeHook
from goddard.client.message import ReceivedMessage
from goddard.client.options import SessionKeywords
from goddard.client.values import ConsumeFrom, MessageQueue
from goddard.protocol.bodies import MessageModel


class LitePullConsumer(BlockingClient[AsyncLitePullConsumer]):
    """A consumer that asks for its messages: ``poll`` gives a batch, ``for`` one by one.

    There is no redelivery. What was handed out and not committed comes again only after a
    restart, or when another member takes the queue over. Messages count as consumed:

    - with ``poll`` and ``auto_commit``, when the next ``poll`` begins; a batch that the user fails
      on is not committed unless the user polls again;
    - with ``for`` and ``auto_commit``, when the loop asks for the next message; an exception
      in its body, or ``break``, leaves the last message uncommitted;
    - with ``commit``, at once: everything handed out so far, or what it is told.

    Auto commit notes offsets every ``auto_commit_interval_ms``, when the user asks for
    messages. They travel to the broker every ``persist_offsets_interval_ms``, and when the
    consumer stops or gives a queue up. One task at a time may ask for messages.

    ``pull_batch_size`` messages at most come with one pull, and so with one ``poll``. Pulling
    pauses while more than ``pull_threshold_for_all`` messages wait, or of one queue more than
    ``pull_threshold_for_queue`` of them, ``pull_threshold_mib_for_queue`` mebibytes, or a
    stretch of ``max_span`` offsets. A broker holds a pull that finds nothing for
    ``broker_suspend_ms``. A group without offsets begins at ``consume_from``; TIMESTAMP means
    ``consume_timestamp_ms``, half an hour ago if left out. With ``MessageModel.BROADCASTING``
    every member reads all queues, and offsets are kept in a file below ``offsets_folder``
    (``~/.rocketmq_offsets``).
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        message_model: MessageModel = MessageModel.CLUSTERING,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        pull_batch_size: int = 10,
        pull_threshold_for_all: int = 10000,
        pull_threshold_for_queue: int = 1000,
        pull_threshold_mib_for_queue: int = 100,
        max_span: int = 2000,
        poll_timeout_ms: int = 5000,
        broker_suspend_ms: int = 20000,
        pull_timeout_ms: int = 30000,
        pull_error_delay_ms: int = 1000,
        auto_commit: bool = True,
        auto_commit_interval_ms: int = 5000,
        queue_check_interval_ms: int = 30000,
        allocation: AllocationStrategy | None = None,
        offsets_folder: Path | None = None,
        consume_hooks: Sequence[ConsumeHook] = (),
        **options: Unpack[SessionKeywords],
    ) -> None:
        BlockingClient.__init__(
            self,
            AsyncLitePullConsumer(
                group,
                name_servers=name_servers,
                message_model=message_model,
                consume_from=consume_from,
                consume_timestamp_ms=consume_timestamp_ms,
                pull_batch_size=pull_batch_size,
                pull_threshold_for_all=pull_threshold_for_all,
                pull_threshold_for_queue=pull_threshold_for_queue,
                pull_threshold_mib_for_queue=pull_threshold_mib_for_queue,
                max_span=max_span,
                poll_timeout_ms=poll_timeout_ms,
                broker_suspend_ms=broker_suspend_ms,
                pull_timeout_ms=pull_timeout_ms,
                pull_error_delay_ms=pull_error_delay_ms,
                auto_commit=auto_commit,
                auto_commit_interval_ms=auto_commit_interval_ms,
                queue_check_interval_ms=queue_check_interval_ms,
                allocation=allocation,
                offsets_folder=offsets_folder,
                consume_hooks=consume_hooks,
                **options,
            ),
        )

    def __iter__(self) -> Self:
        return self

    @property
    def group(self) -> str:
        """The group as brokers know it, with the namespace if there is one."""
        return self._core.group

    def subscribe(
        self,
        topic: str,
        expression: Expression = "*",
        *,
        listener: AssignmentListener | None = None,
    ) -> None:
        """Read this consumer's share of a topic; ``listener`` is told whenever the share
        changes.

        Before or after the start. Of each message that is not wanted nothing is seen but a
        gap in the offsets.
        """
        self._do(lambda: self._core.subscribe(topic, expression, listener=listener))

    def unsubscribe(self, topic: str) -> None:
        """Read nothing more of a topic."""
        self._do(lambda: self._core.unsubscribe(topic))

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues and no others, whatever the rest of the group does.

        ``queues`` is a list, also of a single queue; as everywhere here.
        """
        self._do(lambda: self._core.assign(queues))

    def filter_assigned(self, topic: str, expression: Expression) -> None:
        """What to read of a topic's assigned queues; all of it, if this is not called.

        Before the start only.
        """
        self._do(lambda: self._core.filter_assigned(topic, expression))

    def assignment(self) -> set[MessageQueue]:
        """The queues that are read now."""
        return self._do(self._core.assignment)

    def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """The next messages, of one queue; none if none came in time (``poll_timeout_ms``).

        With auto commit, everything handed out before counts as consumed from now on.
        """
        return self._run(lambda: self._core.poll(timeout_ms))

    def __next__(self) -> ReceivedMessage:
        """The next message; waits for it as long as the consumer runs."""
        return self._next(self._core.next_portion)

    def commit(
        self,
        offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None,
        *,
        persist: bool = True,
    ) -> None:
        """Note how far queues are consumed: all that was handed out of them, or the offsets
        given.

        None is all queues. Unless ``persist`` is False, this returns when the broker has
        noted it; otherwise it is told with the next round of ``persist_offsets_interval_ms``.
        """
        self._run(lambda: self._core.commit(offsets, persist=persist))

    def committed(self, queue: MessageQueue) -> int | None:
        """How far a queue is consumed, as noted here or by the broker; None if neither knows."""
        return self._run(lambda: self._core.committed(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue from this offset on; it must be within the queue."""
        self._run(lambda: self._core.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Read a queue from its oldest message on."""
        self._run(lambda: self._core.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Read of a queue only what comes from now on."""
        self._run(lambda: self._core.seek_to_end(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message of a queue that was stored at this time or later."""
        return self._run(lambda: self._core.offset_for_timestamp(queue, timestamp_ms))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Pull nothing more of these queues for now; what was pulled is still handed out."""
        self._do(lambda: self._core.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull from paused queues again."""
        self._do(lambda: self._core.resume(queues))

    def paused(self) -> set[MessageQueue]:
        return self._do(self._core.paused)

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic that can be read, as the name server knows them now."""
        return self._run(lambda: self._core.fetch_queues(topic))

    def listen_to_queues(self, topic: str, listener: QueuesListener) -> None:
        """Have ``listener`` called when queues of a topic come or go; subscribed to or not.

        It is looked for every ``queue_check_interval_ms``.
        """
        self._do(lambda: self._core.listen_to_queues(topic, listener))
