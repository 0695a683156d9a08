"""What a connection may use: bytes, requests and time. Servers and clients have further options."""

from dataclasses import dataclass

from goddard.protocol.frame import MAX_FRAME_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Limits of each connection, whichever end it is."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    # Our own requests that wait for a response; RocketMQ's clientAsyncSemaphoreValue.
    max_requests_in_flight: int = 65_535
    # The peer's requests that coroutine handlers are working on.
    max_handlers_in_flight: int = 4_096
    # The size of these requests together; one alone may be larger.
    max_handled_bytes: int = 32 * 1024 * 1024
    # Unsent bytes at which nothing more is read from the peer, and at which it is cut off.
    write_buffer_high_bytes: int = 1024 * 1024
    write_buffer_max_bytes: int = 64 * 1024 * 1024
    # A peer over the high mark that takes nothing for this long is cut off.
    write_stall_seconds: float = 30.0
    # A peer whose kernel acknowledges nothing for this long is gone (TCP_USER_TIMEOUT).
    acknowledge_seconds: float = 60.0
    # A peer that begins a frame and has not ended any for this long is cut off.
    partial_frame_seconds: float = 120.0
    # Neither read nor written for this long: closed, as RocketMQ's IdleStateHandler does.
    idle_seconds: float = 120.0

    @property
    def sweep_seconds(self) -> float:
        """How often the owner is to call ``sweep``: often enough to be one eighth late at most."""
        shortest = min(self.write_stall_seconds, self.partial_frame_seconds, self.idle_seconds)
        return min(max(shortest / 8, 0.02), 10.0)
