"""Limits of a connection: bytes, requests and time. Servers and clients have further options."""

from dataclasses import dataclass

from goddard.protocol.frame import MAX_FRAME_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Limits of each connection, at either end."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    # Our requests that wait for a response; RocketMQ's clientAsyncSemaphoreValue.
    max_requests_in_flight: int = 65_535
    # The peer's requests in coroutine handlers.
    max_handlers_in_flight: int = 4_096
    # The total size of these requests; a single one may be larger.
    max_handled_bytes: int = 32 * 1024 * 1024
    # Unsent bytes at which we stop reading from the peer, and at which we disconnect it.
    write_buffer_high_bytes: int = 1024 * 1024
    write_buffer_max_bytes: int = 64 * 1024 * 1024
    # A peer over the high mark that reads nothing for this long is disconnected.
    write_stall_seconds: float = 30.0
    # A peer whose kernel acknowledges nothing for this long is lost (TCP_USER_TIMEOUT).
    acknowledge_seconds: float = 60.0
    # A peer that completes no frame for this long after starting one is disconnected.
    partial_frame_seconds: float = 120.0
    # A connection without reads and writes for this long is closed (Java: IdleStateHandler).
    idle_seconds: float = 120.0

    @property
    def sweep_seconds(self) -> float:
        """The interval at which the owner calls ``sweep``: at most 1/8 of the shortest limit."""
        shortest = min(self.write_stall_seconds, self.partial_frame_seconds, self.idle_seconds)
        return min(max(shortest / 8, 0.02), 10.0)
