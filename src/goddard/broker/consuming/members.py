"""The live members of a group and what they subscribed to, as their heartbeats told.

Belongs to the loop, and to ``broker.consuming.clients``, which decides who is a member; others
only read.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from goddard.protocol.bodies import ConsumeFromWhere, ConsumeType, MessageModel
from goddard.protocol.bodies_client import SubscriptionData
from goddard.transport.connection import Connection

_log = logging.getLogger(__name__)

# Of the topics that two members differ in, as a warning names them.
_MAX_TOPICS_CHARS: Final = 1024

Wanted = tuple[str, str, str]  # topic, type and text of a subscription


@dataclass(slots=True, eq=False)
class Client:
    """A producer or consumer within one group."""

    connection: Connection
    client_id: str
    language: int
    version: int
    last_heartbeat_ms: int
    # Consumers: what its last full heartbeat asked for.
    wanted: frozenset[Wanted] | None = None

    def __str__(self) -> str:
        return f"{self.client_id} at {self.connection.remote}"


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """The live consumers of a group and what they subscribed to, topic by topic."""

    name: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    clients: dict[Connection, Client] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    fingerprint: int | None = None
    last_update_ms: int = 0

    @property
    def is_broadcast(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING

    @property
    def client_ids(self) -> list[str]:
        return [client.client_id for client in self.clients.values()]

    def find_client(self, client_id: str) -> Client | None:
        for client in self.clients.values():
            if client.client_id == client_id:
                return client
        return None

    def subscribe(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Take a member's whole list: newer versions win, other topics go. True on a change."""
        changed = False
        topics = set()
        for subscription in subscriptions:
            topic = subscription.topic
            topics.add(topic)
            old = self.subscriptions.get(topic)
            if old is None:
                _log.info(
                    "subscription changed, add new topic, group: %s %s", self.name, subscription
                )
                self.subscriptions[topic] = subscription
                changed = True
            elif subscription.sub_version > old.sub_version:
                self.subscriptions[topic] = subscription
                if (old.sub_string, old.expression_type) != (
                    subscription.sub_string,
                    subscription.expression_type,
                ):
                    _log.info(
                        "subscription changed, group: %s OLD: %s NEW: %s",
                        self.name,
                        old,
                        subscription,
                    )
        for topic in [known for known in self.subscriptions if known not in topics]:
            _log.warning("subscription changed, group: %s remove topic %s", self.name, topic)
            del self.subscriptions[topic]
            changed = True
        return changed

    def warn_of_differences(
        self, client: Client, subscriptions: Iterable[SubscriptionData]
    ) -> None:
        """Members of a group must want the same, or messages are lost for some of them."""
        wanted = frozenset(
            (each.topic, each.expression_type, each.sub_string) for each in subscriptions
        )
        if wanted == client.wanted:
            return
        client.wanted = wanted
        # A difference from the oldest member was logged at the join; one comparison is enough.
        others = (other for other in self.clients.values() if other is not client)
        other = next((each for each in others if each.wanted is not None), None)
        if other is None or other.wanted is None or other.wanted == wanted:
            return
        topics = sorted({topic for topic, _, _ in wanted ^ other.wanted})
        _log.warning(
            "consumer group %s: the subscriptions of %s and %s differ, topics: %s",
            self.name,
            client,
            other,
            ", ".join(topics)[:_MAX_TOPICS_CHARS],
        )
