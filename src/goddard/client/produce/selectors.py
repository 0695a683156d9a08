"""Which queue a message goes to: hash, random, or a function of the user's own. Pure.

A selector gets the queues to choose from, the message and the ``key`` that was given with it, and
returns one of the queues.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from goddard.client.message import Message
from goddard.client.values import MessageQueue
from goddard.protocol.hashing import java_hash

Selector: TypeAlias = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


def by_hash(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
    """Equal keys in one queue: the one that RocketMQ's SelectMessageQueueByHash chooses.

    Text and whole numbers hash as in Java, so that producers of both kinds agree; anything else
    counts as its ``str``.
    """
    return queue_of_hash(queues, key)


def queue_of_hash(queues: Sequence[MessageQueue], key: Any) -> MessageQueue:
    return queues[_remainder(_java_hash_of(key), len(queues))]


def by_sharding_key(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
    """By the hash of the message's own ``sharding_key``; without one, by the key given."""
    return by_hash(queues, message, message.sharding_key if key is None else key)


def by_random(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
    return random.choice(queues)


def _remainder(value: int, count: int) -> int:
    """Java's remainder has the sign of the dividend; RocketMQ then takes its magnitude."""
    return abs(value) % count


def _java_hash_of(key: Any) -> int:
    if isinstance(key, bool):
        return 1231 if key else 1237
    if isinstance(key, int):
        if -(2**31) <= key < 2**31:
            return key
        if -(2**63) <= key < 2**63:
            # Long: the upper half folded into the lower.
            folded = ((key & (2**64 - 1)) >> 32 ^ key) & 0xFFFFFFFF
            return folded - 2**32 if folded >= 2**31 else folded
    return java_hash(key if isinstance(key, str) else str(key))
