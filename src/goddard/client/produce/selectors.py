"""Which queue a message goes to: by hash, or by the user's own function. Pure.

A selector gets the queues to choose from, the message and the ``key`` that was given with it, and
returns one of the queues.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from goddard.client.checks import check_function, check_queue
from goddard.client.errors import ClientError
from goddard.client.message import Message
from goddard.client.routes import PublishRoute
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError
from goddard.protocol.hashing import java_hash

Selector: TypeAlias = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


def by_hash(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
    """Equal keys go to one queue: the one that RocketMQ's SelectMessageQueueByHash chooses.

    Text and whole numbers are hashed as in Java, so that producers of both kinds agree; of anything
    else, its ``str``.
    """
    return queue_of_hash(queues, key)


def queue_of_hash(queues: Sequence[MessageQueue], key: Any) -> MessageQueue:
    return queues[_remainder(_java_hash_of(key), len(queues))]


def by_sharding_key(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
    """By the hash of ``key``; without one, by that of the message's own ``sharding_key``."""
    return by_hash(queues, message, message.sharding_key if key is None else key)


def select_queue(
    route: PublishRoute, message: Message, selector: Selector | None, key: Any
) -> MessageQueue:
    """The queue that a selector chooses; without one, by the hash of ``key``."""
    queues: Sequence[MessageQueue] = route.queues
    if message.topic != route.topic:
        # A selector sees topics as its user knows them, without namespace.
        queues = [queue._replace(topic=message.topic) for queue in queues]
    try:
        chosen = (selector or by_hash)(queues, message, key)
    except Exception as error:
        raise ClientError(f"select message queue threw exception. {error!r}") from error
    return check_target(chosen, message.topic, route.topic)


def check_choice(
    queue: object, selector: object, key: object, user_topic: str, topic: str
) -> MessageQueue | None:
    """The arguments that choose a queue; returns ``queue`` with the brokers' name of its topic.

    ConfigError unless they are a queue, or a selector or key or both, or nothing.
    """
    if selector is not None:
        check_function("selector", selector)
    if queue is None:
        return None
    if selector is not None or key is not None:
        other = "key" if selector is None else "selector"
        raise ConfigError(f"queue and {other} are given; only one of them can choose the queue")
    return check_target(check_queue(queue), user_topic, topic)


def check_target(queue: object, user_topic: str, topic: str) -> MessageQueue:
    """A queue that was chosen, with the brokers' name of its topic."""
    if not isinstance(queue, MessageQueue):
        raise ClientError(f"select message queue return null. Not a MessageQueue: {queue!r:.200}")
    if queue.topic not in (user_topic, topic):
        raise ClientError("message's topic not equal mq's topic")
    return queue if queue.topic == topic else queue._replace(topic=topic)


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
            # Java's Long: the upper half folded into the lower.
            folded = ((key & (2**64 - 1)) >> 32 ^ key) & 0xFFFFFFFF
            return folded - 2**32 if folded >= 2**31 else folded
    return java_hash(key if isinstance(key, str) else str(key))
