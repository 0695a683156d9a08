"""Who is connected: producers and consumers by group, as their heartbeats tell.

A client is known by its connection. It is forgotten when it says so (35), when its connection
closes, and when no heartbeat came for ``channelExpiredTimeout``. Whenever the members or topics of
a CLUSTERING group change, every member is told (40) to rebalance; changes within a few
milliseconds are told once, so that a group that starts as a whole is not flooded.

Everything here belongs to the loop. Handled: 34 heartbeat, 35 unregister, 38 consumer list, 46
check of a subscription.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from goddard.broker.consuming.filters import ConsumerFilters, check_expression, normalised
from goddard.broker.consuming.heartbeats import MAX_ID_CHARS, check_heartbeat
from goddard.broker.consuming.members import Client, ConsumerGroup
from goddard.broker.settings import Settings
from goddard.broker.tables.topics import Groups, Topics
from goddard.clock import Clock, SystemClock
from goddard.errors import GoddardError
from goddard.protocol import names
from goddard.protocol.bodies import ConsumeType, decode_body, encode_body
from goddard.protocol.bodies_client import (
    CheckClientBody,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    SubscriptionData,
)
from goddard.protocol.codes import Permission, RequestCode, ResponseCode
from goddard.protocol.filters.expression import FilterSyntaxError, is_tag_type
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import (
    GetConsumerListRequest,
    HeartbeatResponse,
    NotifyConsumerIdsRequest,
    UnregisterClientRequest,
)
from goddard.protocol.responses import InvalidParameterError, SubscriptionError, SystemFailedError
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

_log = logging.getLogger(__name__)

SCAN_SECONDS: Final = 10.0
# How long changes of a group are collected before its members are told; late as in Java when
# realTimeNotifyConsumerChange is off.
_NOTIFY_SECONDS: Final = 0.02
_NOTIFY_LATE_SECONDS: Final = 15.0
_READ_WRITE: Final = int(Permission.READ | Permission.WRITE)
_UNIT_SUBSCRIPTION: Final = 2
_MAX_GROUPS_PER_CONNECTION: Final = 16_384
_MAX_IDS_PER_CONNECTION: Final = 1_024
# What is not plain JSON is read slowly, and on the loop; no client sends much of it.
_MAX_DIALECT_BYTES: Final = 128 * 1024


@dataclass(slots=True, eq=False)
class _Session:
    """What one connection takes part in, so that its end costs no search."""

    producers: set[str] = field(default_factory=set)
    consumers: set[str] = field(default_factory=set)
    client_ids: set[str] = field(default_factory=set)

    def check_room(self, client_id: str) -> None:
        """Limit groups and client ids per connection; a gateway has many, but not any number."""
        if len(self.producers) + len(self.consumers) >= _MAX_GROUPS_PER_CONNECTION:
            raise InvalidParameterError(
                f"a connection takes part in {_MAX_GROUPS_PER_CONNECTION} groups at most"
            )
        if len(self.client_ids) >= _MAX_IDS_PER_CONNECTION and client_id not in self.client_ids:
            raise InvalidParameterError(
                f"a connection speaks for {_MAX_IDS_PER_CONNECTION} clients at most"
            )


class Clients:
    """The producers and consumers of a broker. ``scan`` is to be called every SCAN_SECONDS."""

    def __init__(
        self,
        *,
        settings: Settings,
        topics: Topics,
        groups: Groups,
        filters: ConsumerFilters,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._clock = clock or SystemClock()
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Connection, Client]] = {}
        # The connection on which each client last sent a heartbeat, for requests to it.
        self._by_id: dict[str, Connection] = {}
        self._sessions: dict[Connection, _Session] = {}
        self._turn = 0
        self._changed: dict[str, None] = {}
        self._notifier: asyncio.TimerHandle | None = None

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self.handle_heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.handle_unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.handle_consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.handle_check_config,
        }

    # Looking up

    @property
    def consumer_groups(self) -> Mapping[str, ConsumerGroup]:
        """Groups that have a live consumer."""
        return self._consumers

    @property
    def producer_groups(self) -> Mapping[str, Mapping[Connection, Client]]:
        """Groups that have a live producer."""
        return self._producers

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        return self._consumers.get(group)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        found = self._consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def groups_of(self, topic: str) -> list[str]:
        """The groups whose live consumers subscribe to a topic."""
        return [group for group, found in self._consumers.items() if topic in found.subscriptions]

    def producer_connection(self, group: str) -> Connection | None:
        """A live producer of a group, another one each time."""
        producers = [each for each in self._producers.get(group, ()) if not each.is_closed]
        if not producers:
            return None
        self._turn += 1
        return producers[self._turn % len(producers)]

    def find_client(self, client_id: str) -> Connection | None:
        """Where a producer or consumer was last heard."""
        connection = self._by_id.get(client_id)
        return None if connection is None or connection.is_closed else connection

    def connections_of(self, group: str) -> list[Connection]:
        """The live consumers of a group."""
        found = self._consumers.get(group)
        return [] if found is None else [each for each in found.clients if not each.is_closed]

    # Requests

    def handle_heartbeat(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        data = decode_body(request.body, HeartbeatData, max_dialect_bytes=_MAX_DIALECT_BYTES)
        check_heartbeat(data)
        session = self._sessions.setdefault(connection, _Session())
        session.check_room(data.client_id)
        is_changed = False
        for consumer in data.consumer_data_set:
            if not consumer.group_name:
                continue
            if (
                self._settings.current.reject_pull_consumer
                and consumer.consume_type is ConsumeType.ACTIVELY
            ):
                continue
            is_changed |= self._hear_consumer(request, connection, data, consumer)
        for producer in data.producer_data_set:
            if producer.group_name:
                self._hear_producer(request, connection, data.client_id, producer.group_name)
        session.client_ids.add(data.client_id)
        self._by_id[data.client_id] = connection
        header = HeartbeatResponse(
            supports_v2=True,
            # Without a fingerprint (V1) the answer has always been that it may have changed.
            subscription_changed=is_changed or data.heartbeat_fingerprint == 0,
        )
        return request.reply(ext_fields=header.encode())

    def handle_unregister(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        header = UnregisterClientRequest.decode(request.fields)
        if header.producer_group:
            self._forget_producer(header.producer_group, connection)
        if header.consumer_group:
            self._forget_consumer(header.consumer_group, connection)
        session = self._sessions.get(connection)
        if session is not None and not session.producers and not session.consumers:
            self._end(connection, session)
        return request.reply(ext_fields={})

    def handle_consumer_list(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        header = GetConsumerListRequest.decode(request.fields)
        found = self._consumers.get(header.consumer_group)
        if found is None:
            remark = f"no consumer for this group, {header.consumer_group}"
            return request.reply(ResponseCode.SYSTEM_ERROR, remark, ext_fields={})
        body = ConsumerList(consumer_id_list=found.client_ids)
        return request.reply(ext_fields={}, body=encode_body(body))

    def handle_check_config(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        """Whether this broker can filter as a consumer is about to ask."""
        body = (
            decode_body(request.body, CheckClientBody, max_dialect_bytes=_MAX_DIALECT_BYTES)
            if request.body
            else CheckClientBody()
        )
        subscription = body.subscription_data
        if subscription is None or is_tag_type(subscription.expression_type):
            return request.reply()
        if not self._settings.current.property_filter:
            raise SystemFailedError(unsupported_filter(subscription.expression_type))
        try:
            check_expression(subscription.expression_type, subscription.sub_string)
        except FilterSyntaxError as error:
            _log.warning(
                "Client %s@%s filter message, but failed to compile expression! error=%s",
                body.client_id[:MAX_ID_CHARS],
                body.group[:MAX_ID_CHARS],
                error,
            )
            raise SubscriptionError(str(error)) from error
        return request.reply()

    # Leaving

    def connection_closed(self, connection: Connection) -> None:
        """Remove the clients of a closed connection."""
        session = self._sessions.get(connection)
        if session is None:
            return
        for group in list(session.producers):
            self._forget_producer(group, connection)
        for group in list(session.consumers):
            self._forget_consumer(group, connection, always_notify=True)
        self._end(connection, session)

    def _end(self, connection: Connection, session: _Session) -> None:
        del self._sessions[connection]
        for client_id in session.client_ids:
            if self._by_id.get(client_id) is connection:
                del self._by_id[client_id]

    def scan(self) -> None:
        """Drop clients that stopped sending heartbeats, and close their connections."""
        oldest_ms = self._clock.monotonic_ms() - self._settings.current.channel_expired_ms
        silent: dict[Connection, None] = {}
        for name, clients in list(self._producers.items()):
            for client in _expired(clients, oldest_ms):
                self._forget_producer(name, client.connection)
                silent[client.connection] = None
        for name, group in list(self._consumers.items()):
            for client in _expired(group.clients, oldest_ms):
                self._forget_consumer(name, client.connection, always_notify=True)
                silent[client.connection] = None
        for connection in silent:
            session = self._sessions[connection]
            # A client that still sends heartbeats for another group stays.
            if not session.producers and not session.consumers:
                self._end(connection, session)
                connection.close()
        self._filters.purge()

    def notify(self, name: str) -> None:
        """Have the consumers of a group rebalance, if they are to be told of changes at all."""
        group, config = self._consumers.get(name), self._groups.get(name)
        if group is None or group.is_broadcast:
            return
        if config is None or config.notify_consumer_ids_changed_enable:
            self._notify_soon(name)

    def stop(self) -> None:
        """Tell nobody anything any more."""
        if self._notifier is not None:
            self._notifier.cancel()
            self._notifier = None
        self._changed.clear()

    # Consumers

    def _hear_consumer(
        self,
        request: RemotingCommand,
        connection: Connection,
        data: HeartbeatData,
        consumer: ConsumerData,
    ) -> bool:
        """Take one group of a heartbeat; True when a V2 client must send its subscriptions."""
        name = consumer.group_name
        config = self._groups.find(name)
        if config is None:
            return False
        subscriptions = [normalised(each) for each in consumer.subscription_data_set if each.topic]
        # V2 clients leave their subscriptions out while the broker is known to have them.
        is_full = data.heartbeat_fingerprint == 0 or not data.without_sub
        self._ensure_retry_topic(consumer, config.retry_queue_nums, subscriptions, is_full=is_full)
        group = self._consumers.get(name)
        if group is None:
            group = ConsumerGroup(
                name, consumer.consume_type, consumer.message_model, consumer.consume_from_where
            )
            self._consumers[name] = group
        group.consume_type = consumer.consume_type
        group.message_model = consumer.message_model
        group.consume_from_where = consumer.consume_from_where
        changed = self._join(group, request, connection, data.client_id)
        if is_full:
            group.warn_of_differences(group.clients[connection], subscriptions)
            changed |= group.subscribe(subscriptions)
            self._filters.register(name, subscriptions)
        if changed and config.notify_consumer_ids_changed_enable and not group.is_broadcast:
            self._notify_soon(name)
        before, group.fingerprint = group.fingerprint, data.heartbeat_fingerprint
        is_other = before is not None and before != data.heartbeat_fingerprint
        # Beyond Java: a broker that does not know the group (it restarted) asks for the data too.
        return is_other or (not is_full and not group.subscriptions)

    def _ensure_retry_topic(
        self,
        consumer: ConsumerData,
        queue_count: int,
        subscriptions: list[SubscriptionData],
        *,
        is_full: bool,
    ) -> None:
        if self._settings.current.is_slave:
            return  # its topics are those of the master
        topic = names.retry_topic(consumer.group_name)
        if is_full:
            is_ordered = any(self._topics.is_ordered(each.topic) for each in subscriptions)
        else:
            is_ordered = self._topics.is_ordered(topic)
        sys_flag = _UNIT_SUBSCRIPTION if consumer.unit_mode else 0
        self._topics.ensure_topic(topic, queue_count, _READ_WRITE, sys_flag, order=is_ordered)

    def _join(
        self,
        group: ConsumerGroup,
        request: RemotingCommand,
        connection: Connection,
        client_id: str,
    ) -> bool:
        """Add or refresh a member; True when the list of client ids changed."""
        now_ms = self._clock.monotonic_ms()
        group.last_update_ms = self._clock.now_ms()
        known = group.clients.get(connection)
        if known is not None and known.client_id == client_id:
            known.last_heartbeat_ms = now_ms
            return False
        client = Client(connection, client_id, request.language, request.version, now_ms)
        group.clients[connection] = client
        self._sessions[connection].consumers.add(group.name)
        if known is not None:
            _log.error("consumer group %s: %s calls itself %s now", group.name, known, client_id)
        else:
            _log.info(
                "new consumer connected, group: %s %s %s channel: %s",
                group.name,
                group.consume_type,
                group.message_model,
                client,
            )
        return True

    def _forget_consumer(
        self, name: str, connection: Connection, *, always_notify: bool = False
    ) -> None:
        group = self._consumers.get(name)
        client = None if group is None else group.clients.pop(connection, None)
        if group is None or client is None:
            return
        self._sessions[connection].consumers.discard(name)
        _log.info("unregister a consumer[%s] from consumerGroupInfo %s", name, client)
        if not group.clients:
            _log.info(
                "unregister consumer ok, no any connection, and remove consumer group, %s", name
            )
            del self._consumers[name]
            self._filters.unregister(name)
            return
        config = self._groups.get(name)
        is_wanted = config is None or config.notify_consumer_ids_changed_enable or always_notify
        if is_wanted and not group.is_broadcast:
            self._notify_soon(name)

    # Producers

    def _hear_producer(
        self, request: RemotingCommand, connection: Connection, client_id: str, group: str
    ) -> None:
        clients = self._producers.get(group, {})
        now_ms = self._clock.monotonic_ms()
        known = clients.get(connection)
        if known is not None and known.client_id == client_id:
            known.last_heartbeat_ms = now_ms
            return
        config = self._settings.current
        if known is None and not config.register_producers and config.reject_transactions:
            return
        client = Client(connection, client_id, request.language, request.version, now_ms)
        clients[connection] = client
        self._producers[group] = clients
        self._sessions[connection].producers.add(group)
        _log.info("new producer connected, group: %s channel: %s", group, client)

    def _forget_producer(self, group: str, connection: Connection) -> None:
        clients = self._producers.get(group)
        client = None if clients is None else clients.pop(connection, None)
        if clients is None or client is None:
            return
        self._sessions[connection].producers.discard(group)
        _log.info("unregister a producer[%s] from groupChannelTable %s", group, client)
        if not clients:
            _log.info("unregister a producer group[%s] from groupChannelTable", group)
            del self._producers[group]

    # Notifying

    def _notify_soon(self, group: str) -> None:
        config = self._settings.current
        if not config.notify_consumer_ids_changed:
            return
        self._changed[group] = None
        if self._notifier is None:
            is_prompt = config.notify_consumers_in_real_time
            self._notifier = asyncio.get_running_loop().call_later(
                _NOTIFY_SECONDS if is_prompt else _NOTIFY_LATE_SECONDS, self._notify
            )

    def _notify(self) -> None:
        self._notifier = None
        changed, self._changed = self._changed, {}
        for group in changed:
            header = NotifyConsumerIdsRequest(consumer_group=group).encode()
            for connection in self.connections_of(group):
                try:
                    connection.oneway(
                        RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, dict(header))
                    )
                except GoddardError as error:
                    # It balances by its own timer too.
                    _log.warning(
                        "%s was not told that %s changed: %s", connection.remote, group, error
                    )


def _expired(clients: Mapping[Connection, Client], oldest_ms: int) -> list[Client]:
    found = [each for each in clients.values() if each.last_heartbeat_ms < oldest_ms]
    for client in found:
        _log.warning("SCAN: remove expired channel, no heartbeat came from %s", client)
    return found


def unsupported_filter(expression_type: str) -> str:
    """Why a broker without ``enablePropertyFilter`` refuses, in RocketMQ's words."""
    return f"The broker does not support consumer to filter message by {expression_type[:80]}"
