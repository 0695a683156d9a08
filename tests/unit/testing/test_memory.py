import asyncio

import pytest

from tests.support.memory import join


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.events: list[str] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.chunks.append(data)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def eof_received(self) -> bool | None:
        self.events.append("eof")
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)


async def _run_pending_callbacks() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_bytes_are_delivered_later_and_in_order() -> None:
    left, right = Recorder(), Recorder()
    near, far = join(left, right)
    near.write(b"ab")
    near.writelines([b"c", memoryview(b"d")])
    assert right.chunks == []
    await _run_pending_callbacks()
    assert right.chunks == [b"abcd"]
    assert near.get_extra_info("peername") == far.get_extra_info("sockname")


async def test_chunks_of_single_bytes() -> None:
    left, right = Recorder(), Recorder()
    near, _ = join(left, right, chunk_bytes=1)
    near.write(b"abc")
    await _run_pending_callbacks()
    assert right.chunks == [b"a", b"b", b"c"]


async def test_paused_reader_pauses_the_writer() -> None:
    left, right = Recorder(), Recorder()
    near, far = join(left, right)
    near.set_write_buffer_limits(high=10)
    far.pause_reading()
    near.write(b"x" * 11)
    await _run_pending_callbacks()
    assert left.events == ["pause"]
    assert near.get_write_buffer_size() == 11
    far.resume_reading()
    await _run_pending_callbacks()
    assert left.events == ["pause", "resume"]
    assert near.get_write_buffer_size() == 0


async def test_close_delivers_pending_bytes_and_abort_does_not() -> None:
    left, right = Recorder(), Recorder()
    near, _ = join(left, right)
    near.write(b"pending")
    near.close()
    await _run_pending_callbacks()
    assert right.chunks == [b"pending"]
    assert right.events == ["eof"]
    assert await left.lost is None
    assert await right.lost is None

    left, right = Recorder(), Recorder()
    near, _ = join(left, right)
    near.write(b"never")
    near.abort()
    await _run_pending_callbacks()
    assert right.chunks == []
    assert await left.lost is None
    assert isinstance(await right.lost, ConnectionResetError)


async def test_close_waits_for_a_paused_reader() -> None:
    left, right = Recorder(), Recorder()
    near, far = join(left, right)
    far.pause_reading()
    near.write(b"x")
    near.close()
    await _run_pending_callbacks()
    assert not left.lost.done()
    far.resume_reading()
    await _run_pending_callbacks()
    assert left.lost.done()


async def test_set_protocol_is_not_supported() -> None:
    left, right = Recorder(), Recorder()
    near, _ = join(left, right)
    assert near.get_protocol() is left
    with pytest.raises(NotImplementedError):
        near.set_protocol(right)
