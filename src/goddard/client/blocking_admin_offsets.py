"""Administration of offsets: the ends of queues, and moving what a group has consumed.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from collections.abc import Mapping

from goddard.client.admin.admin import Admin as AsyncAdmin
from goddard.client.admin.values import Rollback
from goddard.client.blocking import BlockingClient
from goddard.client.broker_api import Boundary
from goddard.client.values import MessageQueue


class AdminOffsets(BlockingClient[AsyncAdmin]):
    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the queue's next message gets [30]."""
        return self._run(lambda: self._core.max_offset(queue))

    def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that the queue has [31]."""
        return self._run(lambda: self._core.min_offset(queue))

    def search_offset(
        self, queue: MessageQueue, timestamp_ms: int, *, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """The offset of the first message stored at a time or later [29]."""
        return self._run(lambda: self._core.search_offset(queue, timestamp_ms, boundary=boundary))

    def earliest_store_time_ms(self, queue: MessageQueue) -> int:
        """When the queue's oldest message was stored; -1 if it has none [32]."""
        return self._run(lambda: self._core.earliest_store_time_ms(queue))

    def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The offset that a group has consumed a queue up to; None if it has none [14]."""
        return self._run(lambda: self._core.consumer_offset(group, queue))

    def consumer_offsets(self, broker: str) -> dict[tuple[str, str], dict[int, int]]:
        """Every offset that a broker keeps: by topic and group, then queue number [43]."""
        return self._run(lambda: self._core.consumer_offsets(broker))

    def delay_offsets(self, broker: str) -> dict[int, int]:
        """How far a broker has delivered the messages of each delay level [45]."""
        return self._run(lambda: self._core.delay_offsets(broker))

    def update_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Note an offset for a group, as its consumers do [15].

        Consumers that are online do not notice and soon note their own again: see
        ``reset_offset``.
        """
        self._run(lambda: self._core.update_consumer_offset(group, queue, offset))

    def reset_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Have a group consume a queue from an offset on [resetOffsetByTime -b -q -o, 15 and
        222].

        Online consumers follow if the broker resets by itself (useServerSideResetOffset,
        which is the default in 5.3); stop them first at others. They learn of it from the
        answer to the pull that waits: when the next message comes, at the latest after its 15
        seconds.
        """
        self._run(lambda: self._core.reset_offset(group, queue, offset))

    def reset_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Have a group consume several queues from offsets on, as ``reset_offset`` does [15,
        222].
        """
        self._run(lambda: self._core.reset_offsets(group, offsets))

    def reset_offsets_by_time(
        self,
        group: str,
        topic: str,
        timestamp_ms: int,
        *,
        force: bool = True,
        cluster: str | None = None,
    ) -> dict[MessageQueue, int]:
        """Have a group consume a topic from a time on [resetOffsetByTime, 222].

        Without ``force`` offsets only move back, never over messages that are not consumed
        yet. Brokers that leave it to the consumers need them online; for groups that are not,
        offsets are set as by ``reset_offsets_by_time_old``. Gives the new offsets.
        """
        return self._run(
            lambda: self._core.reset_offsets_by_time(
                group, topic, timestamp_ms, force=force, cluster=cluster
            )
        )

    def reset_offsets_by_time_old(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> list[Rollback]:
        """Set a group's offsets to those of a time, without asking its consumers
        [resetOffsetByTimeOld, 208, 29, 15].

        For groups that are not online: consumers would note their own offsets again. Below 0
        is the end.
        """
        return self._run(
            lambda: self._core.reset_offsets_by_time_old(group, topic, timestamp_ms, force=force)
        )

    def skip_accumulated(
        self, group: str, topic: str, *, force: bool = True, cluster: str | None = None
    ) -> dict[MessageQueue, int]:
        """Have a group consume only messages sent from now on [skipAccumulatedMessage, 222]."""
        return self._run(
            lambda: self._core.skip_accumulated(group, topic, force=force, cluster=cluster)
        )

    def clone_offsets(
        self,
        source_group: str,
        target_group: str,
        topic: str | None = None,
        *,
        offline: bool = False,
    ) -> list[str]:
        """Give a group the offsets of another, of one topic or all [cloneGroupOffset, 314].

        ``offline`` takes every topic that the source has offsets for, else only those that
        its consumers want now. Gives the addresses of the brokers that did it.
        """
        return self._run(
            lambda: self._core.clone_offsets(source_group, target_group, topic, offline=offline)
        )

    def correction_offsets(
        self, topic: str, compare_group: str, *, filter_groups: str = "", broker: str
    ) -> dict[int, int]:
        """By queue number, the smallest offset of the groups of a topic on a broker [308]."""
        return self._run(
            lambda: self._core.correction_offsets(
                topic, compare_group, filter_groups=filter_groups, broker=broker
            )
        )
