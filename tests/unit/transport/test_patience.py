"""When a peer is given up, sweep by sweep; what a connection then does is tested with it."""

from goddard.transport.options import ConnectionOptions
from goddard.transport.patience import Patience, Verdict

OPTIONS = ConnectionOptions(write_stall_seconds=30, partial_frame_seconds=60, idle_seconds=120)


class Sweeps:
    """A peer swept every second; what does not change from one sweep to the next is kept."""

    def __init__(self) -> None:
        self.patience = Patience(OPTIONS)
        self.now_ms = 1_000_000
        self.unsent_bytes = 0
        self.is_behind = False
        self.is_inside_frame = False
        # A connection that was just made counts as heard.
        self.until(1, is_heard=True)

    def until(self, seconds: int, *, is_heard: bool = False) -> tuple[Verdict, int]:
        """The first verdict against the peer and after how many seconds it came, if it did."""
        for second in range(1, seconds + 1):
            self.now_ms += 1000
            verdict = self.patience.judge(
                self.now_ms,
                unsent_bytes=self.unsent_bytes,
                is_behind=self.is_behind,
                is_inside_frame=self.is_inside_frame,
                is_heard=is_heard,
            )
            if verdict is not Verdict.ALIVE:
                return verdict, second
        return Verdict.ALIVE, seconds


def test_a_peer_that_does_nothing_is_idle() -> None:
    sweeps = Sweeps()
    assert sweeps.until(119) == (Verdict.ALIVE, 119)
    sweeps.until(1, is_heard=True)
    assert sweeps.until(200) == (Verdict.IDLE, 120)


def test_a_frame_must_end() -> None:
    sweeps = Sweeps()
    sweeps.is_inside_frame = True
    assert sweeps.until(59, is_heard=True) == (Verdict.ALIVE, 59)
    assert sweeps.until(10, is_heard=True) == (Verdict.UNFINISHED, 1)


def test_whoever_ends_frames_may_begin_others() -> None:
    sweeps = Sweeps()
    for _ in range(10):
        sweeps.is_inside_frame = True
        assert sweeps.until(59, is_heard=True) == (Verdict.ALIVE, 59)
        sweeps.is_inside_frame = False
        sweeps.until(1, is_heard=True)


def test_a_peer_that_takes_nothing_is_stalled() -> None:
    sweeps = Sweeps()
    sweeps.unsent_bytes, sweeps.is_behind = 2_000_000, True
    sweeps.patience.begin_stall()
    sweeps.until(1)
    # More that waits is no sign of life; nor is what the peer sends.
    sweeps.unsent_bytes += 1000
    assert sweeps.until(100, is_heard=True) == (Verdict.STALLED, 30)


def test_a_peer_that_takes_a_little_is_neither_stalled_nor_idle() -> None:
    sweeps = Sweeps()
    sweeps.unsent_bytes, sweeps.is_behind = 2_000_000, True
    sweeps.patience.begin_stall()
    for _ in range(20):
        sweeps.unsent_bytes -= 1
        assert sweeps.until(30) == (Verdict.ALIVE, 30)


def test_a_new_stall_counts_from_its_own_beginning() -> None:
    sweeps = Sweeps()
    sweeps.unsent_bytes, sweeps.is_behind = 2_000_000, True
    sweeps.patience.begin_stall()
    assert sweeps.until(25) == (Verdict.ALIVE, 25)
    sweeps.patience.begin_stall()
    assert sweeps.until(100) == (Verdict.STALLED, 31)
