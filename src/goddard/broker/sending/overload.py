"""Whether a send is taken at all, before anything of it is looked at.

A broker that cannot keep up says so at once, in RocketMQ's words, instead of letting requests grow
old in a queue: clients then try another broker. What counts are requests, as in RocketMQ; a batch
is one. Sends that were taken but have not had their turn within ``max_wait_ms`` are refused by the
appender with a LateError. After an append that the disk held up for longer than
``osPageCacheBusyTimeOutMills``, the sends that came meanwhile are refused, so that they do not wait
for another such one. Belongs to the loop thread.
"""

from typing import Final

from goddard.broker.sending.appender import Appender, LateError
from goddard.broker.settings import BrokerConfig, Settings

_OVERLOADED: Final = "[OVERLOAD]system busy, start flow control for a while"
_NOT_MASTER: Final = "[REJECTREQUEST]system busy, start flow control for a while"
# What waits for the disk costs little, so more of it is let in than into the queue.
_UNDURABLE_FACTOR: Final = 10


class Admission:
    """One per broker; ``refusal`` is asked for every send."""

    def __init__(self, appender: Appender, settings: Settings) -> None:
        self._appender = appender
        self._configure(settings.current)
        settings.add_listener(self._configure)

    def _configure(self, config: BrokerConfig) -> None:
        self._is_master = config.broker_role != "SLAVE" or config.enable_slave_acting_master
        self._appender.busy_after_ms = config.page_cache_busy_ms
        self._max_queued = config.send_queue_capacity
        self._max_undurable = config.send_queue_capacity * _UNDURABLE_FACTOR
        self.max_wait_ms = config.wait_in_send_queue_ms if config.fast_failure else None

    def refusal(self) -> str | None:
        """Why no send is taken now (the remark of a SYSTEM_BUSY); None when they are."""
        if not self._is_master:
            return _NOT_MASTER
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


def late_remark(error: LateError) -> str:
    return (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
        f"period in queue: {error.waited_ms}ms, size of queue: {error.queued_requests}"
    )
