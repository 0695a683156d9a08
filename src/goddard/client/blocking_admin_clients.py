"""Administration of producers and consumers that are online: who they are, and how they do.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from collections.abc import Mapping

from goddard.client.admin.admin import Admin as AsyncAdmin
from goddard.client.blocking import BlockingClient
from goddard.client.values import MessageQueue
from goddard.protocol.bodies_admin import Connection, ConsumerConnections, ProducerInfo
from goddard.protocol.bodies_client import ConsumerRunningInfo


class AdminClients(BlockingClient[AsyncAdmin]):
    def consumer_connections(self, group: str, *, broker: str | None = None) -> ConsumerConnections:
        """The consumers of a group that are online, and what they want [consumerConnection,
        203].

        BrokerError with CONSUMER_NOT_ONLINE if there are none.
        """
        return self._run(lambda: self._core.consumer_connections(group, broker=broker))

    def producer_connections(
        self, group: str, topic: str, *, broker: str | None = None
    ) -> list[Connection]:
        """The producers of a group that are online, at the brokers of a topic
        [producerConnection, 204].

        BrokerError with SYSTEM_ERROR if there are none.
        """
        return self._run(lambda: self._core.producer_connections(group, topic, broker=broker))

    def producers(self, broker: str) -> dict[str, list[ProducerInfo]]:
        """Every producer that a broker knows, by group [producer, 328]."""
        return self._run(lambda: self._core.producers(broker))

    def running_info(
        self, group: str, client_id: str, *, with_stacks: bool = False
    ) -> ConsumerRunningInfo:
        """How one consumer is doing, from itself [consumerStatus -i, 307]."""
        return self._run(lambda: self._core.running_info(group, client_id, with_stacks=with_stacks))

    def running_infos(
        self, group: str, *, with_stacks: bool = False
    ) -> dict[str, ConsumerRunningInfo]:
        """How every consumer of a group is doing, by client id [consumerStatus, 203 and 307]."""
        return self._run(lambda: self._core.running_infos(group, with_stacks=with_stacks))

    def consumer_status(
        self, group: str, topic: str, *, client_address: str = ""
    ) -> Mapping[str, dict[MessageQueue, int]]:
        """The offsets that online consumers hold themselves, by client id, of one client or all
        [getConsumerStatus, 223].
        """
        return self._run(
            lambda: self._core.consumer_status(group, topic, client_address=client_address)
        )
