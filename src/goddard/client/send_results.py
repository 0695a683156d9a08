"""The results of sends, which compiled code reads from the bytes of responses.

It takes the plain responses at the beginning of a chunk; all others, and all of them where
``goddard.core`` is not compiled, are decoded as those to any request.
"""

from goddard.core import IS_COMPILED
from goddard.transport.connection import Connection

if IS_COMPILED:
    from goddard.core import client_sends


class SendRequest:
    """The base of requests to send whose results are read in this way."""

    __slots__ = ()

    def stored(
        self,
        offset_message_id: str,
        queue_id: int,
        queue_offset: int,
        transaction_id: str | None,
        region_id: str | None,
        is_traced: bool,
        recall_handle: str | None,
    ) -> None:
        """Called instead of ``done`` when the broker has stored the message."""
        raise NotImplementedError


def take_results(connection: Connection, data: bytes) -> int:
    """Read the plain results at the beginning of a chunk; returns how many bytes were taken."""
    pending = connection.pending
    # The response to a request that is not sent yet is no plain one.
    return 0 if pending.deferred else client_sends.take_results(data, pending.waiting, SendRequest)
