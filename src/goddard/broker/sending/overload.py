"""Whether messages are accepted now, decided before anything of a request is read.

A broker that cannot keep up refuses requests at once, with RocketMQ's remarks, so that they do not
grow old in a queue; clients then try another broker. Requests are counted, as in RocketMQ; a batch
is one. Requests that were accepted but not appended within ``max_wait_ms`` are refused by the
appender with a LateError. After an append that the disk delayed for longer than
``osPageCacheBusyTimeOutMills``, the requests that arrived meanwhile are refused, so that they do
not wait for another slow one. Belongs to the loop.
"""

from typing import Final

from goddard.broker.sending.appender import Appender, LateError
from goddard.broker.settings import BrokerConfig, Settings

_OVERLOADED: Final = "[OVERLOAD]system busy, start flow control for a while"
# A request that waits for the disk costs little, so more of them are accepted.
_UNDURABLE_FACTOR: Final = 10


class Overload:
    """One per broker."""

    def __init__(self, appender: Appender, settings: Settings) -> None:
        self._appender = appender
        self._configure(settings.current)
        settings.add_listener(self._configure)

    def _configure(self, config: BrokerConfig) -> None:
        self._appender.busy_after_ms = config.page_cache_busy_ms
        self._max_queued = config.send_queue_capacity
        self._max_undurable = config.send_queue_capacity * _UNDURABLE_FACTOR
        self.max_wait_ms = config.wait_in_send_queue_ms if config.fast_failure else None

    def refusal(self) -> str | None:
        """The remark of a SYSTEM_BUSY response; None when messages are accepted."""
        appender = self._appender
        if appender.busy_ms:
            return (
                "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
                f"{appender.busy_ms}ms, size of queue: {appender.queued_requests}"
            )
        if (
            appender.queued_requests >= self._max_queued
            or appender.undurable_requests >= self._max_undurable
        ):
            return _OVERLOADED
        return None

    def room(self) -> int:
        """How many more requests are accepted now."""
        appender = self._appender
        if appender.busy_ms or appender.undurable_requests >= self._max_undurable:
            return 0
        return max(0, self._max_queued - appender.queued_requests)


def late_remark(error: LateError) -> str:
    return (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
        f"period in queue: {error.waited_ms}ms, size of queue: {error.queued_requests}"
    )
