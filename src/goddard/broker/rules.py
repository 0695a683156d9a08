"""The rule of every request code that the broker handles: one table, and how to register by it.

What a request changes in this broker alone (its configuration, its old files) is no write here: a
slave does it, too. A slave also takes offsets, from consumers that cannot reach the master.
"""

from collections.abc import Mapping
from typing import Final

from goddard.protocol.codes import RequestCode
from goddard.transport.handlers import Handler, Handlers
from goddard.transport.rules import (
    Action,
    Cluster,
    FromBody,
    FromHeader,
    FromRecord,
    Resources,
    Rule,
)


def _store(action: Action, resources: Resources) -> Rule:
    return Rule(action, resources, is_write=True, stores_messages=True)


def _write(action: Action, resources: Resources) -> Rule:
    return Rule(action, resources, is_write=True, stores_messages=False)


def _read(action: Action, resources: Resources) -> Rule:
    return Rule(action, resources, is_write=False, stores_messages=False)


_TOPIC: Final = FromHeader(topic="topic")
_GROUP: Final = FromHeader(groups=("group",))
_CONSUMER_GROUP: Final = FromHeader(groups=("consumerGroup",))
_TOPIC_AND_GROUP: Final = FromHeader("topic", ("group",))
_TOPIC_AND_CONSUMER_GROUP: Final = FromHeader("topic", ("consumerGroup",))

RULES: Final[Mapping[int, Rule]] = {
    # Messages
    RequestCode.SEND_MESSAGE: _store(Action.PUB, _TOPIC),
    RequestCode.SEND_MESSAGE_V2: _store(Action.PUB, FromHeader(topic="b")),
    RequestCode.SEND_BATCH_MESSAGE: _store(Action.PUB, FromHeader(topic="b")),
    RequestCode.SEND_REPLY_MESSAGE: _store(Action.PUB, _TOPIC),
    RequestCode.SEND_REPLY_MESSAGE_V2: _store(Action.PUB, FromHeader(topic="b")),
    RequestCode.END_TRANSACTION: _store(Action.PUB, FromRecord()),
    RequestCode.CONSUMER_SEND_MSG_BACK: _store(Action.SUB, FromRecord(groups=("group",))),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _store(Action.UPDATE, FromRecord()),
    RequestCode.PULL_MESSAGE: _read(Action.SUB, _TOPIC_AND_CONSUMER_GROUP),
    RequestCode.LITE_PULL_MESSAGE: _read(Action.SUB, _TOPIC_AND_CONSUMER_GROUP),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _read(Action.SUB, FromRecord(groups=("consumerGroup",))),
    RequestCode.QUERY_MESSAGE: _read(Action.GET, _TOPIC),
    RequestCode.VIEW_MESSAGE_BY_ID: _read(Action.GET, FromRecord()),
    RequestCode.QUERY_CONSUME_QUEUE: _read(Action.GET, _TOPIC),
    # Clients
    RequestCode.HEART_BEAT: _read(Action.SUB, FromBody()),
    RequestCode.UNREGISTER_CLIENT: _read(
        Action.SUB, FromHeader(groups=("producerGroup", "consumerGroup"))
    ),
    RequestCode.CHECK_CLIENT_CONFIG: _read(Action.SUB, FromBody()),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _read(Action.SUB, _CONSUMER_GROUP),
    RequestCode.LOCK_BATCH_MQ: _write(Action.SUB, FromBody()),
    RequestCode.UNLOCK_BATCH_MQ: _write(Action.SUB, FromBody()),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _read(Action.GET, _CONSUMER_GROUP),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _read(
        Action.GET, FromHeader(groups=("producerGroup",))
    ),
    RequestCode.GET_ALL_PRODUCER_INFO: _read(Action.LIST, Cluster()),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _read(Action.GET, _CONSUMER_GROUP),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _read(Action.GET, _TOPIC_AND_GROUP),
    # Offsets
    RequestCode.QUERY_CONSUMER_OFFSET: _read(Action.SUB, _TOPIC_AND_CONSUMER_GROUP),
    RequestCode.UPDATE_CONSUMER_OFFSET: _read(Action.SUB, _TOPIC_AND_CONSUMER_GROUP),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _read(Action.GET, _TOPIC),
    RequestCode.GET_MAX_OFFSET: _read(Action.GET, _TOPIC),
    RequestCode.GET_MIN_OFFSET: _read(Action.GET, _TOPIC),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _read(Action.GET, _TOPIC),
    RequestCode.GET_CONSUME_STATS: _read(Action.GET, _TOPIC_AND_CONSUMER_GROUP),
    RequestCode.GET_BROKER_CONSUME_STATS: _read(Action.LIST, Cluster()),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _read(Action.GET, _TOPIC_AND_GROUP),
    RequestCode.QUERY_CORRECTION_OFFSET: _read(Action.GET, FromHeader("topic", ("compareGroup",))),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _write(Action.UPDATE, _TOPIC_AND_GROUP),
    RequestCode.CLONE_GROUP_OFFSET: _write(
        Action.UPDATE, FromHeader("topic", ("srcGroup", "destGroup"))
    ),
    RequestCode.GET_ALL_CONSUMER_OFFSET: _read(Action.LIST, Cluster()),
    RequestCode.GET_ALL_DELAY_OFFSET: _read(Action.LIST, Cluster()),
    # Topics
    RequestCode.UPDATE_AND_CREATE_TOPIC: _write(Action.CREATE, _TOPIC),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _write(Action.CREATE, FromBody()),
    RequestCode.DELETE_TOPIC_IN_BROKER: _write(Action.DELETE, _TOPIC),
    RequestCode.GET_TOPIC_CONFIG: _read(Action.GET, _TOPIC),
    RequestCode.GET_TOPIC_STATS_INFO: _read(Action.GET, _TOPIC),
    RequestCode.GET_ALL_TOPIC_CONFIG: _read(Action.LIST, Cluster()),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _read(Action.LIST, Cluster()),
    # Groups
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _write(Action.CREATE, FromBody()),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _write(Action.CREATE, FromBody()),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _write(Action.DELETE, FromHeader(groups=("groupName",))),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _write(Action.UPDATE, _TOPIC_AND_GROUP),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _read(Action.GET, _GROUP),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _read(Action.LIST, Cluster()),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _read(Action.GET, _TOPIC),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _read(Action.GET, _GROUP),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _read(Action.GET, _TOPIC_AND_GROUP),
    # The broker
    RequestCode.UPDATE_BROKER_CONFIG: _read(Action.UPDATE, Cluster()),
    RequestCode.GET_BROKER_CONFIG: _read(Action.GET, Cluster()),
    RequestCode.GET_BROKER_RUNTIME_INFO: _read(Action.GET, Cluster()),
    RequestCode.VIEW_BROKER_STATS_DATA: _read(Action.GET, Cluster()),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _read(Action.DELETE, Cluster()),
    RequestCode.CLEAN_UNUSED_TOPIC: _read(Action.DELETE, Cluster()),
    RequestCode.DELETE_EXPIRED_COMMITLOG: _read(Action.DELETE, Cluster()),
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: _read(Action.LIST, Cluster()),
    RequestCode.EXCHANGE_BROKER_HA_INFO: _read(Action.UPDATE, Cluster()),
    RequestCode.GET_TIMER_CHECK_POINT: _read(Action.LIST, Cluster()),
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _read(Action.UPDATE, Cluster()),
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _read(Action.UPDATE, Cluster()),
    RequestCode.GET_BROKER_HA_STATUS: _read(Action.GET, Cluster()),
    RequestCode.RESET_MASTER_FLUSH_OFFSET: _read(Action.UPDATE, Cluster()),
}


def register(handlers: Handlers, *tables: Mapping[int, Handler]) -> None:
    """Register the handlers of tables with the rules of their codes."""
    for table in tables:
        for code, handler in table.items():
            handlers.register(code, handler, RULES[code])
