"""All consume queues of a store: found on disk, made on demand, flushed and cleaned together."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from goddard.environment.files import Files, make_durable_directories
from goddard.environment.threads import NewExecutor
from goddard.store.errors import StoreLayoutError, disk_errors
from goddard.store.log.block import QueueKey
from goddard.store.log.syncing import MANY_FILES, DirectorySync
from goddard.store.queues.queue import ConsumeQueue, HasRecord, QueueFiles

_ROCKSDB_MARK: Final = "CURRENT"


class QueueDamage(NamedTuple):
    """A queue whose entries from ``queue_offset`` on are to be made again from the log."""

    queue: ConsumeQueue
    physical_offset: int
    queue_offset: int


class QueueTable:
    """The queues by topic and id. The store's lock guards calls that do not say otherwise."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        file_bytes: int,
        open_capacity: int,
        new_executor: NewExecutor,
    ) -> None:
        self._files = files
        self._directory = directory
        # Outside, because RocketMQ takes every folder in the directory for a topic.
        self._deleted = directory.with_name(f"{directory.name}.deleted")
        self._moved_count = 0
        self._file_bytes = file_bytes
        self._shared = QueueFiles(files, open_capacity)
        self._syncing = DirectorySync(files, directory, new_executor)
        self.by_key: dict[QueueKey, ConsumeQueue] = {}

    def load(
        self, has_record: HasRecord, log_min_offset: int, keep_below: int | None = None
    ) -> list[QueueDamage]:
        """Open every queue; says which have lost entries that the log can give back.

        What is made again from the log anyway, from ``keep_below`` on, is cut here and now: while
        a queue's file is open that costs nothing.
        """
        damages: list[QueueDamage] = []
        with disk_errors("list", self._directory):
            mark = self._files.facts(self._directory / _ROCKSDB_MARK)
            if mark is not None and not mark.is_directory:  # a topic may have that name too
                raise StoreLayoutError(
                    f"{self._directory} is a RocksDB (storeType=defaultRocksDB), which Goddard"
                    " does not read. Move it away to have the queues rebuilt from the commit log",
                    self._directory,
                )
            make_durable_directories(self._files, self._directory)
            self._syncing.open()
        self.delete_leftovers()
        with disk_errors("list", self._directory):
            keys = list(self._keys())
        for topic, queue_id in keys:
            queue = self.get_or_create(topic, queue_id)
            refill_from = queue.load(has_record, log_min_offset)
            queue.loaded_offset = queue.max_offset
            if refill_from is not None:
                damages.append(QueueDamage(queue, refill_from, queue.max_offset))
            if keep_below is not None:
                queue.truncate(keep_below)
        return damages

    def _keys(self) -> Iterator[QueueKey]:
        for topic, facts in self._files.contents(self._directory):
            if facts.is_directory:
                for name in self._files.names(self._directory / topic):
                    if name.isascii() and name.isdigit():
                        yield topic, int(name)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self.by_key.values()))

    def __len__(self) -> int:
        return len(self.by_key)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.by_key.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            directory = self._directory.joinpath(topic, str(queue_id))
            queue = ConsumeQueue(
                self._files, self._shared, directory, topic, queue_id, self._file_bytes
            )
            self.by_key[topic, queue_id] = queue
        return queue

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.by_key})

    def queue_ids(self, topic: str) -> list[int]:
        return sorted(queue_id for name, queue_id in self.by_key if name == topic)

    @property
    def max_physical_offset(self) -> int:
        """The end of the last record that any queue knows."""
        return max((queue.max_physical_offset for queue in self.by_key.values()), default=0)

    def next_offsets(self) -> dict[QueueKey, int]:
        return {key: queue.max_offset for key, queue in self.by_key.items()}

    def truncate(self, physical_end: int) -> None:
        for queue in self.by_key.values():
            queue.truncate(physical_end)

    def clear_stale(self) -> None:
        for queue in self.by_key.values():
            queue.clear_stale()

    def correct_min(self, log_min_offset: int) -> None:
        for queue in self.by_key.values():
            queue.correct_min(log_min_offset)

    def forget(self, queue: ConsumeQueue) -> None:
        """Take a queue out of the table; ``move_away`` and ``delete_folder`` delete its files."""
        del self.by_key[queue.topic, queue.queue_id]
        queue.forget_all()

    def move_away(self, queue: ConsumeQueue) -> Path | None:
        """Move the folder of a forgotten queue to where it can be deleted without haste.

        A queue with the same name may be created afterwards. Needs no lock, except against the
        creation of files.
        """
        with disk_errors("move", queue.directory):
            if self._files.facts(queue.directory) is None:
                return None
            self._files.make_directories(self._deleted)
            self._moved_count += 1
            target = self._deleted / str(self._moved_count)
            self._files.rename(queue.directory, target)
            with suppress(OSError):  # the topic has other queues
                self._files.remove_directory(queue.directory.parent)
        return target

    def delete_folder(self, folder: Path) -> None:
        """Delete the files of a queue that was moved away. Needs no lock."""
        with disk_errors("delete", folder):
            for name in self._files.names(folder):
                self._files.unlink(folder / name)
            self._files.remove_directory(folder)

    def remove_deleted(self) -> None:
        """Remove the directory of deleted queues if it is empty. Never while ``move_away`` runs."""
        with disk_errors("remove", self._deleted):
            is_there = self._files.facts(self._deleted) is not None
            if is_there and not self._files.names(self._deleted):
                self._files.remove_directory(self._deleted)

    def delete_leftovers(self) -> None:
        """Delete what a crash left of deleted queues."""
        with disk_errors("list", self._deleted):
            names = self._files.names(self._deleted)
        for name in names:
            self.delete_folder(self._deleted / name)
        self.remove_deleted()

    def delete_files(self, paths: Iterable[Path]) -> None:
        """Delete files that their queues have forgotten. Needs no lock."""
        for path in paths:
            with disk_errors("delete", path):
                self._files.unlink(path)

    def destroy(self, queues: Sequence[ConsumeQueue]) -> None:
        """Forget and delete queues, where no other thread uses the table."""
        for queue in queues:
            self.forget(queue)
            folder = self.move_away(queue)
            if folder is not None:
                self.delete_folder(folder)
        self.remove_deleted()

    @property
    def waiting(self) -> list[ConsumeQueue]:
        """The queues that have entries in memory to be written."""
        return list(self._shared.waiting)

    def take_unsynced(self) -> dict[tuple[ConsumeQueue, int], None]:
        """What was written or created since the last call; the caller syncs it."""
        unsynced, self._shared.unsynced = self._shared.unsynced, {}
        return unsynced

    def sync(self, unsynced: Collection[tuple[ConsumeQueue, int]]) -> None:
        """Put what was taken on the disk. The one call here that needs no lock: it takes long."""
        if len(unsynced) < MANY_FILES or not self._syncing.sync_everything():
            paths = (path for queue, base in unsynced for path in queue.unsynced_paths(base))
            self._syncing.sync(dict.fromkeys(paths))

    def close(self) -> None:
        self._shared.close()
        self._syncing.close()
