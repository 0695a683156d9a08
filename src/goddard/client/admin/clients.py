"""Administration of online producers and consumers.

A client sends heartbeats only to the brokers that it uses. A broker that does not know a client
therefore proves nothing, and the other brokers are asked too.

Brackets at the end of a docstring sentence give the command of mqadmin and the request code.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from goddard.client import broker_api
from goddard.client.admin.requests import (
    AdminBase,
    addresses_of,
    ask,
    broker_address,
    by_queue,
    group_addresses,
)
from goddard.client.arguments import Text
from goddard.client.errors import BrokerError, PartialFailureError
from goddard.client.queries import each, route, route_addresses
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError, RemotingError
from goddard.protocol.bodies_admin import (
    Connection,
    ConsumerConnections,
    ProducerConnections,
    ProducerInfo,
    ProducerTable,
)
from goddard.protocol.bodies_client import ConsumerRunningInfo, GroupOffsets
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.headers.admin import (
    GetConsumerConnectionsRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusRequest,
    GetProducerConnectionsRequest,
)

T = TypeVar("T")

# A broker waits 10 s for the answer of a client to which it forwards a request.
FORWARDED_TIMEOUT_MS = 11_000


async def known_to(
    addresses: Iterable[str], ask_one: Callable[[str], Awaitable[T]], *unknown_codes: ResponseCode
) -> dict[str, T]:
    """The answers of the brokers that do not answer with one of the ``unknown_codes``.

    If none does, raises the errors of the unreachable brokers, or else the refusal of one.
    """
    known: dict[str, T] = {}
    failures: dict[str, GoddardError] = {}
    refused: list[BrokerError] = []

    async def attempt(address: str) -> None:
        try:
            known[address] = await ask_one(address)
        except BrokerError as error:
            if error.code not in unknown_codes:
                raise
            refused.append(error)
        except RemotingError as error:
            failures[address] = error

    await each(addresses, attempt)
    if known or not (failures or refused):
        return known
    if len(failures) > 1:
        raise PartialFailureError(failures, {})
    raise next(iter(failures.values())) if failures else refused[0]


def merge_connections(answers: Iterable[Iterable[Connection]]) -> list[Connection]:
    """The connections of several brokers, one per client, sorted by client id."""
    found = {connection.client_id: connection for answer in answers for connection in answer}
    return [found[client_id] for client_id in sorted(found)]


class ClientMethods(AdminBase):
    """Read which producers and consumers are online, and their state."""

    async def consumer_connections(
        self, group: str, *, broker: str | None = None, brokers: Iterable[str] | None = None
    ) -> ConsumerConnections:
        """The online consumers of a group and their subscriptions [consumerConnection, 203].

        ``brokers`` are the addresses to ask; if None, one broker or all those of the group's route.
        BrokerError with CONSUMER_NOT_ONLINE if there are no online consumers.
        """
        header = GetConsumerConnectionsRequest(consumer_group=group)

        async def of_one(address: str) -> ConsumerConnections:
            response = await ask(self, address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            return await broker_api.read(response, ConsumerConnections)

        if brokers is None:
            brokers = await group_addresses(self, group, broker=broker)
        answers = await known_to(brokers, of_one, ResponseCode.CONSUMER_NOT_ONLINE)
        merged = next(iter(answers.values()))
        merged.connection_set = merge_connections(
            answer.connection_set for answer in answers.values()
        )
        for answer in answers.values():
            merged.subscription_table = answer.subscription_table | merged.subscription_table
        return merged

    async def producer_connections(
        self, group: str, topic: str, *, broker: str | None = None
    ) -> list[Connection]:
        """The online producers of a group at the brokers of a topic [producerConnection, 204].

        BrokerError with SYSTEM_ERROR if there are none.
        """
        header = GetProducerConnectionsRequest(producer_group=group)

        async def of_one(address: str) -> list[Connection]:
            response = await ask(self, address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
            return (await broker_api.read(response, ProducerConnections)).connection_set

        found = await addresses_of(self, [topic], broker)
        answers = await known_to(found, of_one, ResponseCode.SYSTEM_ERROR)
        return merge_connections(answers.values())

    async def producers(self, broker: str) -> dict[str, list[ProducerInfo]]:
        """All producers that a broker knows, by group [producer, 328]."""
        address = await broker_address(self, broker)
        response = await ask(self, address, RequestCode.GET_ALL_PRODUCER_INFO)
        return (await broker_api.read(response, ProducerTable)).data

    async def running_info(
        self, group: str, client_id: str, *, with_stacks: bool = False
    ) -> ConsumerRunningInfo:
        """The state of one consumer, as it reports it itself [consumerStatus -i, 307]."""
        header = GetConsumerRunningInfoRequest(
            consumer_group=group, client_id=client_id, jstack_enable=with_stacks
        )

        async def of_one(address: str) -> ConsumerRunningInfo:
            response = await ask(
                self,
                address,
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                header,
                timeout_ms=max(self.timeout_ms, FORWARDED_TIMEOUT_MS),
            )
            return await broker_api.read(response, ConsumerRunningInfo)

        # One after the other, because every broker would ask the same client.
        failure: GoddardError | None = None
        for address in await group_addresses(self, group):
            try:
                return await of_one(address)
            except GoddardError as error:
                failure = error
        assert failure is not None, "group_addresses returns at least one address"
        raise failure

    async def running_infos(
        self, group: str, *, with_stacks: bool = False
    ) -> dict[str, ConsumerRunningInfo]:
        """The state of every consumer of a group, by client id [consumerStatus, 203 and 307]."""
        online = await self.consumer_connections(group)

        async def of_one(client_id: str) -> ConsumerRunningInfo:
            return await self.running_info(group, client_id, with_stacks=with_stacks)

        return await each((client.client_id for client in online.connection_set), of_one)

    async def consumer_status(
        self, group: str, topic: str, *, client_address: Text = ""
    ) -> Mapping[str, dict[MessageQueue, int]]:
        """The offsets that online consumers keep, by client id; of one client or of all
        [getConsumerStatus, 223].
        """
        header = GetConsumerStatusRequest(topic=topic, group=group, client_addr=client_address)

        async def of_one(address: str) -> GroupOffsets:
            response = await ask(
                self,
                address,
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                header,
                timeout_ms=max(self.timeout_ms, FORWARDED_TIMEOUT_MS),
            )
            return await broker_api.read(response, GroupOffsets)

        found = route_addresses(await route(self, topic))
        # A broker that does not know the group answers SYSTEM_ERROR.
        answers = await known_to(
            found, of_one, ResponseCode.SYSTEM_ERROR, ResponseCode.CONSUMER_NOT_ONLINE
        )
        offsets: dict[str, dict[MessageQueue, int]] = {}
        for answer in answers.values():
            for client_id, table in answer.consumer_table.items():
                offsets.setdefault(client_id, {}).update(by_queue(table))
        return offsets
