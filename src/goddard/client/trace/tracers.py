"""Makes the tracer of a client that is not a producer itself."""

from goddard.client.produce.producer import Producer
from goddard.client.session import Session
from goddard.client.trace.tracer import (
    MAX_TRACE_BYTES,
    SEND_TIMEOUT_MS,
    TraceOptions,
    Tracer,
    trace_group,
)


def consume_tracer(options: TraceOptions, session: Session, group: str) -> Tracer:
    """For what a consumer of this group (as its user knows it) consumes."""
    producer = Producer.within(
        session,
        trace_group(group, "CONSUME"),
        send_timeout_ms=SEND_TIMEOUT_MS,
        max_message_bytes=MAX_TRACE_BYTES,
    )
    return Tracer(options, producer)
