"""Files are created and deleted without the store's lock, which appends need."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from goddard.environment.files import SystemFiles
from goddard.store.store import MessageStore
from tests.support.store import SmallStore, prepared


class WatchedFiles(SystemFiles):
    """Tries, in another thread, to use the store during each change of names in its folders."""

    def __init__(self) -> None:
        self.store: MessageStore | None = None
        self.meanwhile: Callable[[], object] = lambda: None
        self.changed: list[str] = []

    def watch(self, store: MessageStore, meanwhile: Callable[[], object]) -> None:
        self.store, self.meanwhile = store, meanwhile

    def _check(self, change: str, path: Path) -> None:
        if self.store is None or "commitlog" in path.parts:
            return
        self.changed.append(change)
        store, self.store = self.store, None
        user = threading.Thread(target=self.meanwhile, daemon=True)
        user.start()
        user.join(5)
        assert not user.is_alive(), f"{change} {path} holds the lock"
        self.store = store

    def create(self, path: Path, size: int) -> int:
        self._check("create", path)
        return super().create(path, size)

    def unlink(self, path: Path) -> None:
        self._check("unlink", path)
        super().unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        self._check("rename", source)
        super().rename(source, target)

    def remove_directory(self, path: Path) -> None:
        self._check("remove_directory", path)
        super().remove_directory(path)


def test_appends_go_on_while_queue_files_are_created(tmp_path: Path) -> None:
    files = WatchedFiles()
    with SmallStore(tmp_path, files=files) as store:
        for queue_id in range(3):
            store.put_many([prepared("T", queue_id)] * 50)
        files.watch(store, lambda: store.put(prepared("T", 1)))
        store.tick()
        files.store = None
        assert files.changed.count("create") >= 9
        assert store.get("T", 0, 0, 32).queue_offsets == [*range(20)]
        assert store.max_offset("T", 1) == 50 + len(files.changed)
    with SmallStore(tmp_path) as store:
        assert store.report.is_clean
        assert store.max_offset("T", 1) == 50 + len(files.changed)


def test_an_append_creates_no_queue_file(tmp_path: Path) -> None:
    files = WatchedFiles()
    with SmallStore(tmp_path, files=files, segment_bytes=1 << 20) as store:
        files.watch(store, lambda: None)
        store.put_many([prepared()] * 1000)
        assert files.changed == []
        assert store.get("TopicA", 0, 968, 32).queue_offsets == [*range(968, 1000)]
        files.store = None


def test_appends_go_on_while_a_topic_is_deleted(tmp_path: Path) -> None:
    files = WatchedFiles()
    with SmallStore(tmp_path, files=files) as store:
        for queue_id in range(2):
            store.put_many([prepared("Doomed", queue_id)] * 50)
        store.tick()
        files.watch(store, lambda: store.put(prepared("T")))
        assert store.delete_topic("Doomed") == 2
        files.store = None
        assert {"rename", "unlink", "remove_directory"} <= set(files.changed)
        assert store.max_offset("T", 0) == len(files.changed)
        assert not (tmp_path / "consumequeue" / "Doomed").exists()
        assert not (tmp_path / "consumequeue.deleted").exists()


def test_a_topic_can_be_created_while_its_old_files_are_deleted(tmp_path: Path) -> None:
    files = WatchedFiles()
    with SmallStore(tmp_path, files=files) as store:
        store.put_many([prepared("Doomed", body=b"old")] * 50)
        store.tick()

        def create_again() -> None:
            if files.changed[-1] == "unlink" and store.queues.get("Doomed", 0) is None:
                store.put_many([prepared("Doomed", body=b"new")] * 50)
                store.tick()

        files.watch(store, create_again)
        store.delete_topic("Doomed")
        files.store = None
        assert store.max_offset("Doomed", 0) == 50
    with SmallStore(tmp_path) as store:
        assert store.report.is_clean
        assert store.get("Doomed", 0, 20, 32).queue_offsets == [*range(20, 40)]
        assert not (tmp_path / "consumequeue.deleted").exists()


def test_topics_are_deleted_by_several_threads(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        topics = [f"Doomed{number}" for number in range(64)]
        for topic in topics:
            store.put_many([prepared(topic)] * 2)
        store.tick()
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(store.delete_topic, topics, timeout=60)) == [1] * len(topics)
        assert not (tmp_path / "consumequeue.deleted").exists()


def test_appends_go_on_while_retention_deletes_queue_files(tmp_path: Path) -> None:
    files = WatchedFiles()
    small = SmallStore(tmp_path, files=files, segment_bytes=2048)
    with small as store:
        store.put_many([prepared()] * 100)
        store.tick()
        store.flush()
        small.clock.jump(10 * 365 * 86_400_000)
        files.watch(store, lambda: store.max_offset("TopicA", 0))
        assert store.clean(is_manual=True) > 2
        files.store = None
        assert files.changed.count("unlink") >= 2
        assert store.min_offset("TopicA", 0) > 20


def test_leftovers_of_a_deletion_are_deleted_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / "consumequeue.deleted" / "3"
    left.mkdir(parents=True)
    (left / f"{0:020d}").write_bytes(bytes(400))
    with SmallStore(tmp_path) as store:
        assert store.queues.topics() == []
        assert not left.parent.exists()
