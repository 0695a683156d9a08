"""How transactions end: the states, and hooks that see each end on its way to the broker."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from goddard.client.message import Message, ReceivedMessage

_logger: Final = logging.getLogger("goddard.client")


class TransactionState(Enum):
    """What becomes of a half message. The values are RocketMQ's names."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    # Not known yet: the broker asks later.
    UNKNOWN = "UNKNOW"


@dataclass(frozen=True, slots=True)
class EndTransactionContext:
    """One end of a transaction; ``group`` and the message's topic are as brokers know them."""

    group: str
    message: Message | ReceivedMessage
    message_id: str
    transaction_id: str | None
    state: TransactionState
    broker_address: str
    is_from_check: bool


class EndTransactionHook(Protocol):
    """Is told before a decision is sent to the broker. Called on the loop; must not block."""

    def end_transaction(self, context: EndTransactionContext) -> None: ...


def call_end_hooks(hooks: Iterable[EndTransactionHook], context: EndTransactionContext) -> None:
    """What a hook raises is logged and goes no further."""
    for hook in hooks:
        try:
            hook.end_transaction(context)
        except Exception:
            _logger.warning("failed to executeEndTransactionHook", exc_info=True)
