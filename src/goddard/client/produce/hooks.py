"""User code that is called around each attempt of a send, and before a transaction ends.

A hook is called on the event loop and must not block. An exception of a SendHook or an
EndTransactionHook is logged and ignored; one of a ForbiddenHook stops the send and is raised to its
caller.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.encoding import SendSettings
from goddard.client.produce.retry import PendingSend
from goddard.client.session import Session
from goddard.client.values import MessageQueue, SendMode, SendResult, TransactionState
from goddard.protocol.message import DELAY_PROPERTIES, PROPERTY_TRANSACTION_PREPARED

_logger: Final = logging.getLogger("goddard.client")


class MessageType(Enum):
    """What kind of message a hook sees; the values are RocketMQ's names."""

    NORMAL = "Normal_Msg"
    TRANSACTION_HALF = "Trans_Msg_Half"
    DELAY = "Delay_Msg"


@dataclass(slots=True)
class SendContext:
    """One attempt of a send. After it ``result`` or ``error`` is set; neither for one-way sends."""

    group: str
    message: Message
    messages: tuple[Message, ...]
    queue: MessageQueue
    broker_address: str
    mode: SendMode
    message_type: MessageType
    namespace: str
    started_ms: int
    result: SendResult | None = None
    error: Exception | None = None
    ended_ms: int = 0


@dataclass(frozen=True, slots=True)
class ForbiddenContext:
    """An attempt that is about to be made."""

    name_servers: tuple[str, ...]
    group: str
    mode: SendMode
    broker_address: str
    message: Message
    queue: MessageQueue
    is_unit_mode: bool


@dataclass(frozen=True, slots=True)
class EndTransactionContext:
    """The end of a transaction; ``group`` and the message's topic are as brokers know them."""

    group: str
    message: Message | ReceivedMessage
    message_id: str
    transaction_id: str | None
    state: TransactionState
    broker_address: str
    is_from_check: bool


class SendHook(Protocol):
    """Called before and after each attempt of a send, also after one that failed."""

    def before_send(self, context: SendContext) -> None: ...

    def after_send(self, context: SendContext) -> None: ...


class ForbiddenHook(Protocol):
    """May prevent a send by raising an exception."""

    def check(self, context: ForbiddenContext) -> None: ...


class EndTransactionHook(Protocol):
    """Called before a decision is sent to the broker."""

    def end_transaction(self, context: EndTransactionContext) -> None: ...


class SendHooks:
    """The hooks of one producer's sends."""

    def __init__(
        self,
        session: Session,
        settings: SendSettings,
        send_hooks: Sequence[SendHook],
        forbidden_hooks: Sequence[ForbiddenHook],
    ) -> None:
        self._session = session
        self._settings = settings
        self._send_hooks = tuple(send_hooks)
        self._forbidden_hooks = tuple(forbidden_hooks)
        self.has_any = bool(send_hooks or forbidden_hooks)

    def before(self, pending: PendingSend, address: str) -> SendContext | None:
        """Call the hooks before an attempt. Raises what a ForbiddenHook raises."""
        session, settings = self._session, self._settings
        assert pending.out is not None
        assert pending.queue is not None
        queue = pending.queue._replace(topic=pending.out.user_topic)
        first = pending.messages[0]
        for forbidden in self._forbidden_hooks:
            forbidden.check(
                ForbiddenContext(
                    name_servers=session.name_servers,
                    group=settings.group,
                    mode=pending.mode,
                    broker_address=address,
                    message=first,
                    queue=queue,
                    is_unit_mode=settings.is_unit_mode,
                )
            )
        if not self._send_hooks:
            return None
        context = SendContext(
            group=settings.group,
            message=first,
            messages=tuple(pending.messages),
            queue=queue,
            broker_address=address,
            mode=pending.mode,
            message_type=message_type(first),
            namespace=settings.namespace,
            started_ms=session.clock.now_ms(),
        )
        for hook in self._send_hooks:
            try:
                hook.before_send(context)
            except Exception:
                _logger.warning("failed to executeSendMessageHookBefore", exc_info=True)
        return context

    def after(
        self,
        context: SendContext | None,
        *,
        result: SendResult | None = None,
        error: Exception | None = None,
    ) -> None:
        """Call the hooks after an attempt; ``context`` is what ``before`` returned."""
        if context is None:
            return
        context.result = result
        context.error = error
        context.ended_ms = self._session.clock.now_ms()
        for hook in self._send_hooks:
            try:
                hook.after_send(context)
            except Exception:
                _logger.warning("failed to executeSendMessageHookAfter", exc_info=True)


def call_end_hooks(hooks: Iterable[EndTransactionHook], context: EndTransactionContext) -> None:
    for hook in hooks:
        try:
            hook.end_transaction(context)
        except Exception:
            _logger.warning("failed to executeEndTransactionHook", exc_info=True)


def message_type(message: Message) -> MessageType:
    properties = message.properties
    if properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() == "true":
        return MessageType.TRANSACTION_HALF
    if not DELAY_PROPERTIES.isdisjoint(properties):
        return MessageType.DELAY
    return MessageType.NORMAL
