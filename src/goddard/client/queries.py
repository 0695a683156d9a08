"""Requests about topics, queues and messages, for producers and for administration.

Requests to several servers run concurrently, and all of them are made: if some fail, the
PartialFailureError names these servers and has the answers of the others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from goddard.client import broker_api
from goddard.client.errors import (
    BrokerError,
    BrokerNotFoundError,
    ClientError,
    NoRouteError,
    PartialFailureError,
)
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError, GoddardError, ProtocolError
from goddard.protocol.bodies import BrokerData, ClusterInfo, TopicConfig, TopicRoute
from goddard.protocol.codes import MASTER_ID, RequestCode, ResponseCode
from goddard.protocol.headers.admin import CreateTopicRequest
from goddard.protocol.ids import parse_offset_message_id
from goddard.protocol.names import AUTO_CREATE_TOPIC
from goddard.protocol.record import iter_records

MAX_FOUND: Final = 64
END_OF_TIME_MS: Final = 2**63 - 1
# RocketMQ's limit for unique keys. Retries write the same id, so the index may have several.
_MAX_SAME_ID: Final = 32
_LOOK_BACK_MS: Final = 3 * 24 * 60 * 60 * 1000

T = TypeVar("T")


class Requester(broker_api.Caller, broker_api.NameServerCaller, Protocol):
    """Makes requests to brokers and name servers; a Session does."""


class Asker(Protocol):
    """What makes the requests, and how long one may take."""

    @property
    def session(self) -> Requester: ...
    @property
    def timeout_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """The result of a search by key, oldest messages first.

    Messages that were stored after ``index_last_update_ms`` may be missing, because the index does
    not have them yet.
    """

    messages: list[ReceivedMessage]
    index_last_update_ms: int


async def each(addresses: Iterable[str], ask_one: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Ask several servers concurrently; returns their answers by address.

    If only one server is asked, its own error is raised.
    """

    async def attempt(address: str) -> tuple[T] | GoddardError:
        try:
            return (await ask_one(address),)
        except GoddardError as error:
            return error

    asked = list(dict.fromkeys(addresses))
    answers = await asyncio.gather(*(attempt(address) for address in asked))
    results: dict[str, T] = {}
    failures: dict[str, GoddardError] = {}
    for address, answer in zip(asked, answers, strict=True):
        if isinstance(answer, GoddardError):
            failures[address] = answer
        else:
            (results[address],) = answer
    if failures and len(asked) == 1:
        raise next(iter(failures.values()))
    if failures:
        raise PartialFailureError(failures, results)
    return results


# --- Brokers --------------------------------------------------------------------------------------


async def cluster_info(asker: Asker) -> ClusterInfo:
    return await broker_api.cluster_info(asker.session, timeout_ms=asker.timeout_ms)


async def broker_name(asker: Asker, address: str) -> str:
    """The name of the broker at an address; BrokerNotFoundError if there is none."""
    for data in (await cluster_info(asker)).broker_addr_table.values():
        if address in data.broker_addrs.values():
            return data.broker_name
    raise BrokerNotFoundError(address)


async def route(asker: Asker, topic: str) -> TopicRoute:
    """What the name server says about a topic; NoRouteError if it does not know the topic."""
    found = await broker_api.topic_route(asker.session, topic, timeout_ms=asker.timeout_ms)
    if found is None:
        raise NoRouteError(topic)
    return found


def address_to_ask(broker: BrokerData) -> str | None:
    """The address of the master, or of the replica with the smallest id if there is no master."""
    if not broker.broker_addrs:
        return None
    return broker.broker_addrs.get(MASTER_ID) or broker.broker_addrs[min(broker.broker_addrs)]


def route_addresses(found: TopicRoute, cluster: str | None = None) -> dict[str, str]:
    """One address of each broker of a route: broker names by address."""
    chosen: dict[str, str] = {}
    for data in found.broker_datas:
        address = address_to_ask(data)
        if address is not None and cluster in (None, data.cluster):
            chosen[address] = data.broker_name
    return chosen


def master_addresses(found: TopicRoute) -> dict[str, str]:
    """The masters of a route: broker names by address."""
    return {
        data.broker_addrs[MASTER_ID]: data.broker_name
        for data in found.broker_datas
        if MASTER_ID in data.broker_addrs
    }


async def queue_address(asker: Asker, queue: MessageQueue) -> str:
    """The address of a queue's broker."""
    for data in (await route(asker, queue.topic)).broker_datas:
        address = address_to_ask(data)
        if data.broker_name == queue.broker_name and address is not None:
            return address
    raise BrokerNotFoundError(queue.broker_name)


# --- Topics ---------------------------------------------------------------------------------------


def format_attributes(changes: Mapping[str, str | None]) -> str:
    """Format attributes for a request: ``+key=value`` sets one, ``-key`` (None) removes it."""
    for key, value in changes.items():
        if not key or any(mark in key + (value or "") for mark in ",="):
            raise ConfigError(
                f"the attribute {key!r} or its value is empty or contains a comma or an equals sign"
            )
    return ",".join(
        f"-{key}" if value is None else f"+{key}={value}" for key, value in changes.items()
    )


def topic_header(config: TopicConfig, attributes: Mapping[str, str | None]) -> CreateTopicRequest:
    """The header of a request that creates or changes a topic."""
    return CreateTopicRequest(
        topic=config.topic_name,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=format_attributes(attributes),
    )


async def create_topic(
    asker: Asker, addresses: Iterable[str], header: CreateTopicRequest
) -> list[str]:
    """Create or change a topic on several brokers (17); returns their addresses.

    ClientError if there are no brokers.
    """

    async def of_one(address: str) -> None:
        command = broker_api.command(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        await asker.session.call(address, command, asker.timeout_ms)

    created = await each(addresses, of_one)
    if not created:
        raise ClientError(
            f"the topic {header.topic} cannot be created: no master is registered",
            advice="check that a master is running and that the name server is the right one",
        )
    return list(created)


# --- Queues ---------------------------------------------------------------------------------------


async def max_offset(asker: Asker, queue: MessageQueue) -> int:
    address = await queue_address(asker, queue)
    return await broker_api.max_offset(asker.session, address, queue, timeout_ms=asker.timeout_ms)


async def min_offset(asker: Asker, queue: MessageQueue) -> int:
    address = await queue_address(asker, queue)
    return await broker_api.min_offset(asker.session, address, queue, timeout_ms=asker.timeout_ms)


async def search_offset(
    asker: Asker,
    queue: MessageQueue,
    timestamp_ms: int,
    boundary: broker_api.Boundary = broker_api.Boundary.LOWER,
) -> int:
    return await broker_api.search_offset(
        asker.session,
        await queue_address(asker, queue),
        queue,
        timestamp_ms,
        boundary=boundary,
        timeout_ms=asker.timeout_ms,
    )


async def earliest_store_time_ms(asker: Asker, queue: MessageQueue) -> int:
    address = await queue_address(asker, queue)
    return await broker_api.earliest_store_time_ms(
        asker.session, address, queue, timeout_ms=asker.timeout_ms
    )


# --- Messages -------------------------------------------------------------------------------------


def messages_of(records: bytes, broker: str) -> list[ReceivedMessage]:
    return [ReceivedMessage.from_record(record, broker) for record in iter_records(records)]


def no_message(text: str) -> ClientError:
    return ClientError(
        f"query message finished, but no message: {text}",
        code=ResponseCode.NO_MESSAGE,
        advice="the message may be deleted, or not yet in the index",
    )


async def message(asker: Asker, topic: str, message_id: str, *, now_ms: int) -> ReceivedMessage:
    """A message by either of its ids; one that the client gave is at most three days old."""
    try:
        host, physical_offset = parse_offset_message_id(message_id)
        name = await broker_name(asker, str(host))
        return await _message_at(asker, topic, str(host), physical_offset, name)
    except (ProtocolError, BrokerNotFoundError):
        pass
    except BrokerError as error:
        # An id of a client may look like an id of a broker, with an offset without a message.
        if error.code != ResponseCode.SYSTEM_ERROR:
            raise
    found = await messages_by_unique_key(asker, topic, message_id, now_ms=now_ms)
    if not found.messages:
        raise no_message(f"no message of {topic} has the id {message_id}")
    return found.messages[0]


async def message_by_offset_id(asker: Asker, topic: str, offset_message_id: str) -> ReceivedMessage:
    """A message by the id that its broker gave it."""
    host, physical_offset = parse_offset_message_id(offset_message_id)
    try:
        name = await broker_name(asker, str(host))
    except BrokerNotFoundError:
        name = ""  # registered under another address, such as a host's name
    return await _message_at(asker, topic, str(host), physical_offset, name)


async def _message_at(
    asker: Asker, topic: str, address: str, physical_offset: int, broker: str
) -> ReceivedMessage:
    record = await broker_api.view_message(
        asker.session, address, physical_offset, topic=topic, timeout_ms=asker.timeout_ms
    )
    (found,) = messages_of(record, broker)
    return found


async def messages_by_unique_key(
    asker: Asker,
    topic: str,
    unique_key: str,
    *,
    now_ms: int,
    begin_ms: int | None = None,
    end_ms: int = END_OF_TIME_MS,
    cluster: str | None = None,
) -> FoundMessages:
    """Messages by the id that the client gave; without ``begin_ms``, of the last three days."""
    return await find_messages(
        asker,
        topic,
        unique_key,
        max_count=_MAX_SAME_ID,
        begin_ms=now_ms - _LOOK_BACK_MS if begin_ms is None else begin_ms,
        end_ms=end_ms,
        cluster=cluster,
        by_unique_key=True,
    )


async def find_messages(
    asker: Asker,
    topic: str,
    key: str,
    *,
    max_count: int = MAX_FOUND,
    begin_ms: int = 0,
    end_ms: int = END_OF_TIME_MS,
    cluster: str | None = None,
    by_unique_key: bool = False,
    by_tag: bool = False,
    last_key: str | None = None,
) -> FoundMessages:
    """Messages with a key or tag, of all brokers of the topic; ``max_count`` is for each broker."""
    brokers = route_addresses(await route(asker, topic), cluster)

    async def of_one(address: str) -> FoundMessages:
        answer = await broker_api.query_messages(
            asker.session,
            address,
            topic,
            key,
            max_count=max_count,
            begin_ms=begin_ms,
            end_ms=end_ms,
            by_unique_key=by_unique_key,
            index_type="T" if by_tag else None,
            last_key=last_key,
            timeout_ms=asker.timeout_ms * 3,
        )
        return FoundMessages(
            messages_of(answer.records, brokers[address]), answer.index_last_update_timestamp_ms
        )

    answers = await each(brokers, of_one)
    return merge_found(answers.values(), topic, key, by_unique_key=by_unique_key, by_tag=by_tag)


def merge_found(
    answers: Iterable[FoundMessages],
    topic: str,
    key: str,
    *,
    by_unique_key: bool,
    by_tag: bool = False,
) -> FoundMessages:
    """Merge what several brokers found, oldest first; drops messages that only share the key's
    hash.
    """
    messages: list[ReceivedMessage] = []
    index_last_update_ms = 0
    for answer in answers:
        index_last_update_ms = max(index_last_update_ms, answer.index_last_update_ms)
        messages += (
            one
            for one in answer.messages
            if (
                one.message_id == key
                if by_unique_key
                else one.topic == topic and key in ([one.tags] if by_tag else one.keys)
            )
        )
    messages.sort(key=lambda one: (one.store_timestamp_ms, one.queue, one.queue_offset))
    return FoundMessages(messages, index_last_update_ms)
