"""A cluster whose broker deletes old messages when a test asks for it."""

import os
from pathlib import Path

from goddard import Admin, MessageQueue
from goddard.testing.cluster import Cluster, Daemon
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic

_SECONDS = 60
_FILE_BYTES = 1024 * 1024


class SmallFilesCluster:
    """A cluster of one broker with small commit-log files."""

    def __init__(self, cluster: Cluster) -> None:
        self.site = Site(cluster.start_name_server())
        self.site.start_goddard_broker(
            cluster, properties={"mappedFileSizeCommitLog": str(_FILE_BYTES)}
        )
        self.broker: Daemon = cluster.brokers[0]
        (self.broker_name,) = self.site.brokers

    def expire_old_files(self, topic: NumberedTopic) -> int:
        """Let retention delete all files but the last; returns the first queue's min offset."""
        while len(self._files()) < 3:
            topic.fill(4_000)
        queue = MessageQueue(topic.name, self.broker_name, 0)
        with Admin(name_servers=self.site.namesrv) as admin:

            def first() -> int:
                # Repeated, because messages that are not flushed yet are not deleted.
                for path in self._files()[:-1]:
                    os.utime(path, (0, 0))
                admin.delete_expired_commit_logs(broker=self.broker_name)
                return admin.min_offset(queue)

            wait_until(lambda: first() and len(self._files()) == 1, _SECONDS, "old files are gone")
            return first()

    def _files(self) -> list[Path]:
        return sorted(
            path
            for path in (self.broker.home / "store" / "commitlog").iterdir()
            if path.name.isdigit() and any(path.read_bytes()[:8])
        )
