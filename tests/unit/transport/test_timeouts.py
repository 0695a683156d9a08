"""When a peer times out, sweep by sweep; the reaction is tested with the connection."""

from goddard.transport.options import ConnectionOptions
from goddard.transport.timeouts import PeerState, PeerTimeouts

OPTIONS = ConnectionOptions(write_stall_seconds=30, partial_frame_seconds=60, idle_seconds=120)


class Sweeps:
    """Sweeps a peer every second; the attributes are the arguments of each check."""

    def __init__(self) -> None:
        self.timeouts = PeerTimeouts(OPTIONS)
        self.now_ms = 1_000_000
        self.unsent_bytes = 0
        self.is_over_high_mark = False
        self.is_inside_frame = False
        # The first check of a connection has traffic.
        self.until(1, had_traffic=True)

    def until(self, seconds: int, *, had_traffic: bool = False) -> tuple[PeerState, int]:
        """The first state that is not ALIVE, and the number of seconds until it."""
        for second in range(1, seconds + 1):
            self.now_ms += 1000
            state = self.timeouts.check(
                self.now_ms,
                unsent_bytes=self.unsent_bytes,
                is_over_high_mark=self.is_over_high_mark,
                is_inside_frame=self.is_inside_frame,
                had_traffic=had_traffic,
            )
            if state is not PeerState.ALIVE:
                return state, second
        return PeerState.ALIVE, seconds


def test_a_peer_without_traffic_is_idle() -> None:
    sweeps = Sweeps()
    assert sweeps.until(119) == (PeerState.ALIVE, 119)
    sweeps.until(1, had_traffic=True)
    assert sweeps.until(200) == (PeerState.IDLE, 120)


def test_an_incomplete_frame_times_out() -> None:
    sweeps = Sweeps()
    sweeps.is_inside_frame = True
    assert sweeps.until(59, had_traffic=True) == (PeerState.ALIVE, 59)
    assert sweeps.until(10, had_traffic=True) == (PeerState.PARTIAL_FRAME, 1)


def test_complete_frames_restart_the_frame_timeout() -> None:
    sweeps = Sweeps()
    for _ in range(10):
        sweeps.is_inside_frame = True
        assert sweeps.until(59, had_traffic=True) == (PeerState.ALIVE, 59)
        sweeps.is_inside_frame = False
        sweeps.until(1, had_traffic=True)


def test_a_peer_that_reads_nothing_is_stalled() -> None:
    sweeps = Sweeps()
    sweeps.unsent_bytes, sweeps.is_over_high_mark = 2_000_000, True
    sweeps.timeouts.begin_stall()
    sweeps.until(1)
    # Neither more unsent bytes nor bytes from the peer end the stall.
    sweeps.unsent_bytes += 1000
    assert sweeps.until(100, had_traffic=True) == (PeerState.STALLED, 30)


def test_a_slow_reader_is_neither_stalled_nor_idle() -> None:
    sweeps = Sweeps()
    sweeps.unsent_bytes, sweeps.is_over_high_mark = 2_000_000, True
    sweeps.timeouts.begin_stall()
    for _ in range(20):
        sweeps.unsent_bytes -= 1
        assert sweeps.until(30) == (PeerState.ALIVE, 30)


def test_a_new_stall_restarts_the_stall_timeout() -> None:
    sweeps = Sweeps()
    sweeps.unsent_bytes, sweeps.is_over_high_mark = 2_000_000, True
    sweeps.timeouts.begin_stall()
    assert sweeps.until(25) == (PeerState.ALIVE, 25)
    sweeps.timeouts.begin_stall()
    assert sweeps.until(100) == (PeerState.STALLED, 31)
