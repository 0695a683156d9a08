"""The rule of every request code that the name server handles."""

from collections.abc import Mapping
from typing import Final

from goddard.protocol.codes import RequestCode
from goddard.transport.rules import Action, Cluster, FromHeader, Resources, Rule


def _write(action: Action, resources: Resources) -> Rule:
    return Rule(action, resources, is_write=True, stores_messages=False)


def _read(action: Action, resources: Resources) -> Rule:
    return Rule(action, resources, is_write=False, stores_messages=False)


_TOPIC: Final = FromHeader(topic="topic")

RULES: Final[Mapping[int, Rule]] = {
    # Routes
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _read(Action.GET, _TOPIC),
    RequestCode.GET_BROKER_CLUSTER_INFO: _read(Action.LIST, Cluster()),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _read(Action.LIST, Cluster()),
    RequestCode.GET_TOPICS_BY_CLUSTER: _read(Action.LIST, Cluster()),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _read(Action.LIST, Cluster()),
    RequestCode.GET_UNIT_TOPIC_LIST: _read(Action.LIST, Cluster()),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _read(Action.LIST, Cluster()),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _read(Action.LIST, Cluster()),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: _write(Action.CREATE, _TOPIC),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _write(Action.DELETE, _TOPIC),
    # Brokers
    RequestCode.REGISTER_BROKER: _write(Action.UPDATE, Cluster()),
    RequestCode.UNREGISTER_BROKER: _write(Action.UPDATE, Cluster()),
    RequestCode.BROKER_HEARTBEAT: _write(Action.UPDATE, Cluster()),
    # It also renews the registration.
    RequestCode.QUERY_DATA_VERSION: _write(Action.UPDATE, Cluster()),
    RequestCode.GET_BROKER_MEMBER_GROUP: _read(Action.GET, Cluster()),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _write(Action.UPDATE, Cluster()),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _write(Action.UPDATE, Cluster()),
    # Configuration
    RequestCode.PUT_KV_CONFIG: _write(Action.UPDATE, Cluster()),
    RequestCode.DELETE_KV_CONFIG: _write(Action.DELETE, Cluster()),
    RequestCode.GET_KV_CONFIG: _read(Action.GET, Cluster()),
    RequestCode.GET_KVLIST_BY_NAMESPACE: _read(Action.LIST, Cluster()),
    RequestCode.UPDATE_NAMESRV_CONFIG: _write(Action.UPDATE, Cluster()),
    RequestCode.GET_NAMESRV_CONFIG: _read(Action.GET, Cluster()),
}
