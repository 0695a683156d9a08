"""Hooks that trace sends, ends of transactions and calls of listeners.

As in RocketMQ, a send is traced when it is answered; messages with TRACE_ON=false, and the tracer's
own messages, are not traced.
"""

from typing import Final

from goddard.client.listeners.hooks import ConsumeHookContext
from goddard.client.produce.encoding import split_result
from goddard.client.produce.hooks import EndTransactionContext, MessageType, SendContext
from goddard.client.session import Session
from goddard.client.trace.records import (
    ConsumeEnd,
    ConsumeStart,
    MessageKind,
    SendTrace,
    TransactionEnd,
)
from goddard.client.trace.tracer import Tracer
from goddard.client.values import SendStatus
from goddard.protocol.message import PROPERTY_KEYS, PROPERTY_REGION, PROPERTY_TRACE

_KINDS: Final = {
    MessageType.NORMAL: MessageKind.NORMAL,
    MessageType.TRANSACTION_HALF: MessageKind.HALF,
    MessageType.DELAY: MessageKind.DELAY,
}
_DEFAULT_REGION: Final = "DefaultRegion"
_STARTED: Final = "trace"


class SendTracing:
    """Traces each send that is answered; of a batch, each message."""

    def __init__(self, tracer: Tracer, session: Session) -> None:
        self._tracer = tracer
        self._session = session

    def before_send(self, context: SendContext) -> None:
        pass

    def after_send(self, context: SendContext) -> None:
        result = context.result
        topic = self._session.without_namespace(context.message.topic)
        if result is None or not result.trace_on or topic.startswith(self._tracer.topic):
            return
        ids = [message.message_id or "" for message in context.messages]
        for message, own in zip(context.messages, split_result(result, ids), strict=True):
            self._tracer.append(
                SendTrace(
                    timestamp_ms=context.started_ms,
                    region=result.region_id,
                    group=self._session.without_namespace(context.group),
                    topic=topic,
                    message_id=own.message_id,
                    tags=message.tags,
                    keys=message.properties.get(PROPERTY_KEYS),
                    store_host=context.broker_address,
                    body_bytes=len(message.body),
                    cost_ms=context.ended_ms - context.started_ms,
                    kind=_KINDS[context.message_type],
                    offset_message_id=own.offset_message_id,
                    is_success=result.status is SendStatus.SEND_OK,
                )
            )


class ConsumeTracing:
    """Traces the start and the end of each call of a listener, for each of its messages."""

    def __init__(self, tracer: Tracer, session: Session) -> None:
        self._tracer = tracer
        self._session = session

    def before_consume(self, context: ConsumeHookContext) -> None:
        traced = [message for message in context.messages if message.get(PROPERTY_TRACE) != "false"]
        if not traced:
            return
        # Not an id of the session: those may be taken only on its loop.
        request_id = self._session.environment.new_uuid().hex.upper()
        context.attachments[_STARTED] = (request_id, traced)
        group = self._session.without_namespace(context.group)
        for message in traced:
            self._tracer.append(
                ConsumeStart(
                    timestamp_ms=context.started_ms,
                    # Brokers before 5.0 do not set it.
                    region=message.get(PROPERTY_REGION) or _DEFAULT_REGION,
                    group=group,
                    request_id=request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=message.get(PROPERTY_KEYS),
                )
            )

    def after_consume(self, context: ConsumeHookContext) -> None:
        if _STARTED not in context.attachments:
            return
        request_id, traced = context.attachments[_STARTED]
        cost_ms = (context.ended_ms - context.started_ms) // len(context.messages)
        for message in traced:
            self._tracer.append(
                ConsumeEnd(
                    request_id=request_id,
                    message_id=message.message_id,
                    cost_ms=cost_ms,
                    is_success=context.is_success,
                    keys=message.get(PROPERTY_KEYS),
                    outcome=context.outcome,
                    timestamp_ms=context.ended_ms,
                    group=self._session.without_namespace(context.group),
                )
            )


class TransactionTracing:
    """Traces the decisions of producers about their transactions."""

    def __init__(self, tracer: Tracer, session: Session) -> None:
        self._tracer = tracer
        self._session = session

    def end_transaction(self, context: EndTransactionContext) -> None:
        session, message = self._session, context.message
        topic = session.without_namespace(message.topic)
        if topic.startswith(self._tracer.topic):
            return
        self._tracer.append(
            TransactionEnd(
                timestamp_ms=session.clock.now_ms(),
                region=message.get(PROPERTY_REGION) or _DEFAULT_REGION,
                group=session.without_namespace(context.group),
                topic=topic,
                message_id=context.message_id,
                tags=message.tags,
                keys=message.get(PROPERTY_KEYS),
                store_host=context.broker_address,
                kind=MessageKind.COMMIT,
                transaction_id=context.transaction_id,
                state=context.state.value,
                is_from_check=context.is_from_check,
            )
        )
