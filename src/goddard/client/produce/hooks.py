"""Code of the user's own around each send, and before it.

A hook is called on the loop and must not block. What a SendHook raises is logged and goes no
further; what a ForbiddenHook raises stops the send and reaches the sender.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from goddard.client.message import Message
from goddard.client.values import MessageQueue, SendResult
from goddard.protocol.message import DELAY_PROPERTIES, PROPERTY_TRANSACTION_PREPARED

_logger: Final = logging.getLogger("goddard.client")


class SendMode(Enum):
    SYNC = "SYNC"
    ASYNC = "ASYNC"
    ONEWAY = "ONEWAY"


class MessageType(Enum):
    """What kind of message a hook sees; the values are RocketMQ's names."""

    NORMAL = "Normal_Msg"
    TRANSACTION_HALF = "Trans_Msg_Half"
    DELAY = "Delay_Msg"


@dataclass(slots=True)
class SendContext:
    """One try of a send. ``result`` or ``error`` is there after it; neither for one-way sends."""

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
    """A send that is about to be made."""

    name_servers: tuple[str, ...]
    group: str
    mode: SendMode
    broker_address: str
    message: Message
    queue: MessageQueue
    is_unit_mode: bool


class SendHook(Protocol):
    """Sees each try of a send, before and after; after also when it failed."""

    def before_send(self, context: SendContext) -> None: ...

    def after_send(self, context: SendContext) -> None: ...


class ForbiddenHook(Protocol):
    """May veto a send by raising."""

    def check(self, context: ForbiddenContext) -> None: ...


def message_type(message: Message) -> MessageType:
    properties = message.properties
    if properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() == "true":
        return MessageType.TRANSACTION_HALF
    if not DELAY_PROPERTIES.isdisjoint(properties):
        return MessageType.DELAY
    return MessageType.NORMAL


def call_before(hooks: Iterable[SendHook], context: SendContext) -> None:
    for hook in hooks:
        try:
            hook.before_send(context)
        except Exception:
            _logger.warning("failed to executeSendMessageHookBefore", exc_info=True)


def call_after(hooks: Iterable[SendHook], context: SendContext) -> None:
    for hook in hooks:
        try:
            hook.after_send(context)
        except Exception:
            _logger.warning("failed to executeSendMessageHookAfter", exc_info=True)
