"""Requests about consumer groups: their settings, and which topics and groups belong together.

Handled: 200 and 225 create or change, 207 delete, 201 and 352 settings, 353 what a group may not
read, 300 groups of a topic, 343 topics of a group, 345 a subscription. Belongs to the loop.
"""

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from goddard.broker.admin.topics import MAX_QUEUES, page_of, same
from goddard.broker.consuming.clients import Clients
from goddard.broker.consuming.offsets import Offsets
from goddard.broker.settings import Settings
from goddard.broker.stats import Stats
from goddard.broker.tables.attributes import GROUP_ATTRIBUTES, AttributeProblemError, altered
from goddard.broker.tables.topics import Groups
from goddard.protocol import names
from goddard.protocol.bodies import TopicList, decode_body, encode_body
from goddard.protocol.bodies_admin import (
    GroupForbidden,
    GroupList,
    SubscriptionAnswer,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.admin import (
    DeleteGroupRequest,
    GetAllGroupConfigRequest,
    GetAllGroupConfigResponse,
    GetGroupConfigRequest,
    QuerySubscriptionRequest,
    QueryTopicConsumersRequest,
    QueryTopicsByConsumerRequest,
    UpdateGroupForbiddenRequest,
)
from goddard.protocol.responses import (
    GroupNotExistError,
    InvalidParameterError,
    SystemFailedError,
)
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

_log = logging.getLogger(__name__)

_READ_FORBIDDEN: Final = 1 << 2


class AdminGroups:
    """The handlers of requests about consumer groups."""

    def __init__(
        self,
        *,
        settings: Settings,
        groups: Groups,
        clients: Clients,
        offsets: Offsets,
        stats: Stats,
    ) -> None:
        self._settings = settings
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._stats = stats

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.handle_create,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.handle_create_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.handle_delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.handle_configs,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.handle_config,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.handle_forbidden,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.handle_groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.handle_topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.handle_subscription,
        }

    # Changing

    def handle_create(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        _log.info(
            "AdminBrokerProcessor#updateAndCreateSubscriptionGroup called by %s", connection.remote
        )
        if request.body:
            wanted = decode_body(request.body, SubscriptionGroupConfig)
            self._groups.put(self._checked(wanted))
        return request.reply()

    def handle_create_list(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        wanted = decode_body(request.body, SubscriptionGroupList).group_config_list
        _log.info(
            "AdminBrokerProcessor#updateAndCreateSubscriptionGroupList: %d groups, called by %s",
            len(wanted),
            connection.remote,
        )
        # All are checked before the first is changed.
        self._groups.put_all([self._checked(each) for each in wanted])
        return request.reply()

    def _checked(self, wanted: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """The group as it is to be; its attributes are the old ones with the changes made."""
        problem = names.group_problem(wanted.group_name)
        if problem is not None:
            raise InvalidParameterError(problem[:1000])
        if not 0 <= wanted.retry_queue_nums <= MAX_QUEUES:
            raise InvalidParameterError(
                f"retryQueueNums {wanted.retry_queue_nums} is not 0 to {MAX_QUEUES}"
            )
        existing = self._groups.get(wanted.group_name)
        try:
            attributes = altered(
                None if existing is None else existing.attributes,
                wanted.attributes,
                GROUP_ATTRIBUTES,
            )
        except AttributeProblemError as error:
            raise SystemFailedError(str(error)) from error
        return msgspec.structs.replace(wanted, attributes=attributes)

    def handle_delete(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = DeleteGroupRequest.decode(request.fields)
        _log.info("AdminBrokerProcessor#deleteSubscriptionGroup, caller=%s", connection.remote)
        self._groups.delete(header.group_name)
        if header.clean_offset or header.remove_offset:
            self._offsets.remove(group=header.group_name)
        self._stats.forget(group=header.group_name)
        return request.reply()

    def handle_forbidden(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = UpdateGroupForbiddenRequest.decode(request.fields)
        _log.info(
            "updateAndGetGroupForbidden called by %s for object %s@%s readable=%s",
            connection.remote,
            header.group[:255],
            header.topic[:255],
            header.readable,
        )
        table = self._groups.table
        bits = table.forbidden(header.group, header.topic)
        if header.readable is not None:
            problem = names.group_problem(header.group) or names.topic_problem(header.topic)
            if problem is not None:
                raise InvalidParameterError(problem[:1000])
            changed = bits & ~_READ_FORBIDDEN if header.readable else bits | _READ_FORBIDDEN
            if changed != bits:
                bits = changed
                self._groups.forbid(header.group, header.topic, bits)
        body = GroupForbidden(
            group=header.group, topic=header.topic, readable=not bits & _READ_FORBIDDEN
        )
        return request.reply(remark="", body=encode_body(body))

    # Describing

    def handle_configs(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = GetAllGroupConfigRequest.decode(request.fields)
        version = self._groups.data_version
        page = page_of(
            self._groups.configs,
            self._settings,
            first=header.group_seq,
            most=header.max_group_num,
            is_same=None if header.data_version is None else same(header.data_version, version),
        )
        forbidden = self._groups.table.all_forbidden
        body = SubscriptionGroupTable(
            data_version=version,
            forbidden_table={name: dict(forbidden[name]) for name in page if name in forbidden},
            subscription_group_table={name: self._groups.configs[name] for name in page},
        )
        answer = GetAllGroupConfigResponse(total_group_num=len(self._groups))
        return request.reply(ext_fields=answer.encode(), body=encode_body(body))

    def handle_config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        config = self._groups.find(GetGroupConfigRequest.decode(request.fields).group)
        if config is None:
            raise GroupNotExistError("No group in this broker")
        return request.reply(body=encode_body(config))

    def handle_groups_of_topic(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        topic = QueryTopicConsumersRequest.decode(request.fields).topic
        groups = {*self._clients.groups_of(topic), *self._offsets.table.groups_of(topic)}
        return request.reply(body=encode_body(GroupList(group_list=sorted(groups))))

    def handle_topics_of_group(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        group = QueryTopicsByConsumerRequest.decode(request.fields).group
        body = TopicList(
            broker_addr=self._settings.current.broker_address,
            topic_list=sorted(self._offsets.table.topics_of(group)),
        )
        return request.reply(body=encode_body(body))

    def handle_subscription(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        header = QuerySubscriptionRequest.decode(request.fields)
        topic = header.topic
        found = None if topic is None else self._clients.subscription(header.group, topic)
        body = SubscriptionAnswer(group=header.group, topic=topic, subscription_data=found)
        return request.reply(body=encode_body(body))
