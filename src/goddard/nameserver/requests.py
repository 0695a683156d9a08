"""Requests of clients and administrators: routes, lists, permissions, KV, configuration.

Owned by the loop. The texts and codes of errors are RocketMQ's, because tools print them and
clients match them.
"""

import logging
from collections.abc import Awaitable
from typing import Final

from goddard.clock import Clock
from goddard.config import MAX_UPDATE_BYTES, ProtectedPropertyError, parse_properties
from goddard.errors import ConfigError
from goddard.nameserver import views
from goddard.nameserver.kv import ORDER_TOPIC_NAMESPACE, KvTable, KvWriteError
from goddard.nameserver.routes import RouteTable
from goddard.nameserver.rules import RULES
from goddard.nameserver.settings import Settings
from goddard.protocol import bodies
from goddard.protocol.bodies import TopicRoute, decode_body, encode_body, encode_route
from goddard.protocol.codes import VERSION_4_9_4, RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.cluster import (
    AddWritePermissionRequest,
    AddWritePermissionResponse,
    DeleteKvRequest,
    DeleteTopicInNameServerRequest,
    GetKvRequest,
    GetKvResponse,
    GetRouteRequest,
    GetTopicsByClusterRequest,
    ListKvRequest,
    PutKvRequest,
    RegisterTopicRequest,
    WipeWritePermissionRequest,
    WipeWritePermissionResponse,
)
from goddard.protocol.responses import (
    NoPermissionError,
    QueryNotFoundError,
    SystemFailedError,
    TopicNotExistError,
)
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers

_log = logging.getLogger(__name__)

_NO_ROUTE: Final = (
    "No topic route info in name server for the topic: %s\n"
    "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
)
_ZONE_MODE: Final = "__ZONE_MODE"
_ZONE_NAME: Final = "__ZONE_NAME"


class Requests:
    """Handlers over the route table, the KV table and the configuration."""

    def __init__(self, routes: RouteTable, kv: KvTable, settings: Settings, clock: Clock) -> None:
        self._routes = routes
        self._kv = kv
        self._settings = settings
        self._clock = clock
        self._started_ms = clock.monotonic_ms()

    def install(self, handlers: Handlers) -> None:
        for code, handler in (
            (RequestCode.GET_ROUTEINFO_BY_TOPIC, self.get_route),
            (RequestCode.GET_BROKER_CLUSTER_INFO, self.get_cluster_info),
            (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self.get_all_topics),
            (RequestCode.GET_TOPICS_BY_CLUSTER, self.get_topics_by_cluster),
            (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, self.get_system_topics),
            (RequestCode.GET_UNIT_TOPIC_LIST, self.get_unit_topics),
            (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, self.get_unit_topics),
            (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, self.get_unit_topics),
            (RequestCode.WIPE_WRITE_PERM_OF_BROKER, self.wipe_write_permission),
            (RequestCode.ADD_WRITE_PERM_OF_BROKER, self.add_write_permission),
            (RequestCode.DELETE_TOPIC_IN_NAMESRV, self.delete_topic),
            (RequestCode.REGISTER_TOPIC_IN_NAMESRV, self.register_topic),
            (RequestCode.PUT_KV_CONFIG, self.put_kv),
            (RequestCode.GET_KV_CONFIG, self.get_kv),
            (RequestCode.DELETE_KV_CONFIG, self.delete_kv),
            (RequestCode.GET_KVLIST_BY_NAMESPACE, self.list_kv),
            (RequestCode.UPDATE_NAMESRV_CONFIG, self.update_config),
            (RequestCode.GET_NAMESRV_CONFIG, self.get_config),
        ):
            handlers.register(code, handler, RULES[code])

    # Routes

    def get_route(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = GetRouteRequest.decode(request.fields)
        topic = header.topic
        settings = self._settings.current
        if settings.need_wait_for_service:
            waited_ms = self._clock.monotonic_ms() - self._started_ms
            if waited_ms < settings.wait_seconds_for_service * 1000:
                _log.warning("name server not ready. request code %d", request.code)
                raise SystemFailedError("name server not ready")
        order_conf = None
        if settings.order_message_enable:
            order_conf = self._kv.get(ORDER_TOPIC_NAMESPACE, topic)
        standard = request.version >= VERSION_4_9_4 or bool(header.accept_standard_json_only)
        body = self._routes.encoded_route(topic, standard_json=standard, order_conf=order_conf)
        if body is None:
            raise TopicNotExistError(_NO_ROUTE % topic)
        if _ZONE_MODE in request.fields:
            body = self._zone_route(request, topic, order_conf) or body
        return request.reply(body=body)

    def _zone_route(
        self, request: RemotingCommand, topic: str, order_conf: str | None
    ) -> bytes | None:
        """The route with the client's zone only; as in RocketMQ, never in standard JSON."""
        fields = request.fields
        zone = fields.get(_ZONE_NAME, "").strip()
        route = self._routes.route(topic, order_conf)
        if fields[_ZONE_MODE].lower() != "true" or not zone or route is None:
            return None
        return encode_route(views.in_zone(route, zone), standard=False)

    def get_cluster_info(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        return request.reply(
            body=encode_body(views.cluster_info(self._routes), unquoted_int_keys=True)
        )

    # Topic lists

    def get_all_topics(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        if not self._settings.current.enable_all_topic_list:
            raise SystemFailedError("disable")
        return request.reply(body=encode_body(views.all_topics(self._routes)))

    def get_topics_by_cluster(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        self._check_lists_enabled()
        header = GetTopicsByClusterRequest.decode(request.fields)
        return request.reply(
            body=encode_body(views.topics_of_cluster(self._routes, header.cluster))
        )

    def get_system_topics(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        return request.reply(body=encode_body(views.system_topics(self._routes)))

    def get_unit_topics(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        self._check_lists_enabled()
        if request.code == RequestCode.GET_UNIT_TOPIC_LIST:
            topics = views.unit_topics(self._routes)
        elif request.code == RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST:
            topics = views.unit_sub_topics(self._routes)
        else:
            topics = views.unit_sub_topics_outside_unit(self._routes)
        return request.reply(body=encode_body(topics))

    def _check_lists_enabled(self) -> None:
        if not self._settings.current.enable_topic_list:
            raise SystemFailedError("disable")

    # Topics and permissions

    def wipe_write_permission(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        name = WipeWritePermissionRequest.decode(request.fields).broker_name
        count = self._routes.wipe_write_permission(name)
        _log.info("wipe write perm of broker[%s], client: %s, %d", name, connection.remote, count)
        answer = WipeWritePermissionResponse(wipe_topic_count=count)
        return request.reply(ext_fields=answer.encode())

    def add_write_permission(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        name = AddWritePermissionRequest.decode(request.fields).broker_name
        count = self._routes.add_write_permission(name)
        _log.info("add write perm of broker[%s], client: %s, %d", name, connection.remote, count)
        answer = AddWritePermissionResponse(add_topic_count=count)
        return request.reply(ext_fields=answer.encode())

    def delete_topic(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = DeleteTopicInNameServerRequest.decode(request.fields)
        self._routes.delete_topic(header.topic, header.cluster_name)
        _log.info("delete topic %s, client: %s", header.topic, connection.remote)
        return request.reply()

    def register_topic(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        topic = RegisterTopicRequest.decode(request.fields).topic
        route = decode_body(request.body, TopicRoute) if request.body else TopicRoute()
        if route.queue_datas and not self._routes.register_topic(topic, route.queue_datas):
            _log.warning("Register topic contains illegal broker, %s, %s", topic, route.queue_datas)
        return request.reply()

    # Key-value configuration

    async def put_kv(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = PutKvRequest.decode(request.fields)
        await _stored(self._kv.put(header.namespace, header.key, header.value))
        _log.info(
            "putKVConfig, Namespace: %s Key: %s, client: %s",
            header.namespace,
            header.key,
            connection.remote,
        )
        return request.reply()

    def get_kv(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = GetKvRequest.decode(request.fields)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise QueryNotFoundError(
                f"No config item, Namespace: {header.namespace} Key: {header.key}"
            )
        return request.reply(ext_fields=GetKvResponse(value=value).encode())

    async def delete_kv(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = DeleteKvRequest.decode(request.fields)
        await _stored(self._kv.delete(header.namespace, header.key))
        _log.info(
            "deleteKVConfig, Namespace: %s Key: %s, client: %s",
            header.namespace,
            header.key,
            connection.remote,
        )
        return request.reply()

    def list_kv(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        namespace = ListKvRequest.decode(request.fields).namespace
        values = self._kv.namespace(namespace)
        if values is None:
            raise QueryNotFoundError(f"No config item, Namespace: {namespace}")
        return request.reply(body=encode_body(bodies.KvTable(dict(values))))

    # Configuration

    async def update_config(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        _log.info("updateConfig called by %s", connection.remote)
        if not request.body:
            return request.reply()
        if len(request.body) > MAX_UPDATE_BYTES:
            raise SystemFailedError(f"an update may have at most {MAX_UPDATE_BYTES} bytes")
        try:
            properties = parse_properties(str(request.body, "utf-8"))
            await self._settings.update(properties, connection.remote)
        except UnicodeDecodeError as error:
            raise SystemFailedError(f"the configuration is not UTF-8 text: {error}") from error
        except ProtectedPropertyError as error:
            _log.warning("updateConfig of %s is rejected: %s", connection.remote, error)
            raise NoPermissionError(f"Can not update config in black list. {error}") from error
        except ConfigError as error:
            raise SystemFailedError(str(error)) from error
        except OSError as error:
            _log.error("the configuration was not written: %s", error)
            raise SystemFailedError(f"the configuration was not stored: {error}") from error
        return request.reply()

    def get_config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        return request.reply(body=self._settings.as_text().encode())


async def _stored(write: Awaitable[None]) -> None:
    """Wait for a write of the KV table; its failure becomes an error response."""
    try:
        await write
    except KvWriteError as error:
        raise SystemFailedError(str(error)) from error
