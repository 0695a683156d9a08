"""Verbs about consumer groups."""

from typing import TYPE_CHECKING, Final

from goddard.cli.mqadmin.call import Call, in_parallel
from goddard.cli.mqadmin.java_text import (
    front,
    group_fields,
    group_text,
    seconds_text,
    version_text,
)
from goddard.cli.mqadmin.messaging.topics import parse_attributes, read_file
from goddard.cli.terminal.mistakes import FailedError
from goddard.client.admin.values import GroupProgress
from goddard.client.errors import BrokerError
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError, ProtocolError
from goddard.protocol.bodies import ConsumeType, MessageModel, RequestMode, decode_body
from goddard.protocol.bodies_admin import (
    ConsumerConnections,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from goddard.protocol.codes import ResponseCode
from goddard.protocol.names import RETRY_PREFIX, is_retry_topic

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

_OFFLINE: Final = "OFFLINE"
_PROGRESS: Final = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s%s"
_PROGRESS_ROW: Final = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s %s"
_CLIENTS: Final = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s %-20s%s"
_CLIENTS_ROW: Final = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s %-20s %s"
_GROUPS: Final = "%-64s  %-6s  %-24s %-5s  %-14s  %-7s  %s"
_HEADER_LINE: Final = "=" * 29


async def update_group(call: Call) -> None:
    options = call.options
    config = SubscriptionGroupConfig(
        group_name=options.text("g"),
        consume_enable=options.boolean("s", True),
        # Java's tool, unlike its brokers, switches these off unless they are given.
        consume_from_min_enable=options.boolean("m"),
        consume_broadcast_enable=options.boolean("d"),
        consume_message_orderly=options.boolean("o"),
        retry_queue_nums=options.number("q", 1),
        retry_max_times=options.number("r", 16),
        broker_id=options.number("i", 0),
        which_broker_when_consume_slowly=options.number("w", 1),
        notify_consumer_ids_changed_enable=options.boolean("a", True),
        attributes={
            f"-{key}" if value is None else f"+{key}": value or ""
            for key, value in parse_attributes(options, "attributes").items()
        },
    )
    policy = options.get("p")
    if policy is not None:
        try:
            config.group_retry_policy = decode_body(policy.encode(), GroupRetryPolicy)
        except ProtocolError as error:
            raise options.wrong("p", f"takes a retry policy as JSON: {error}") from error
    change = call.admin.create_group(
        config.group_name,
        **call.place(),
        consume_enabled=config.consume_enable,
        consume_from_min_enabled=config.consume_from_min_enable,
        broadcast_enabled=config.consume_broadcast_enable,
        orderly=config.consume_message_orderly,
        retry_queues=config.retry_queue_nums,
        max_retries=config.retry_max_times,
        retry_policy=config.group_retry_policy,
        broker_id=config.broker_id,
        broker_id_when_slow=config.which_broker_when_consume_slowly,
        notify_consumer_changes=config.notify_consumer_ids_changed_enable,
        attributes=config.attributes,
    )
    await call.changed(change, lambda one: f"create subscription group to {one} success.")
    call.text(group_text(config))


async def update_group_list(call: Call) -> None:
    configs = read_file(call.options, "f", list[SubscriptionGroupConfig])
    kind = "group config" if "b" in call.options else "subscription group config"
    await call.changed(
        call.admin.create_groups(configs, **call.place()),
        lambda one: f"submit batch of {kind} to {one} success, please check the result later.",
    )


async def delete_group(call: Call) -> None:
    options, group = call.options, call.options.text("g")
    change = call.admin.delete_group(group, **call.place(), remove_offsets=options.boolean("r"))
    cluster = f" in cluster [{options.text('c')}]" if "b" not in options else ""
    await call.changed(
        change,
        lambda one: f"delete subscription group [{group}] from broker [{one}]{cluster} success.",
    )


async def set_consume_mode(call: Call) -> None:
    options = call.options
    topic, group = options.text("t"), options.text("g")
    mode = RequestMode(options.choice("m", (one.value for one in RequestMode)))
    share = options.number("q")
    change = call.admin.set_request_mode(group, topic, mode, **call.place(), pop_share_queues=share)
    await call.changed(change, lambda one: f"set consume mode to {one} success.")
    call.text(f"topic[{topic}] group[{group}] consume mode[{mode}] popShareQueueNum[{share}]")


async def get_consumer_config(call: Call) -> None:
    group = call.options.text("g")
    masters = [place for place in await call.admin.brokers() if place.is_master]
    tables = await in_parallel(masters, lambda place: call.admin.group_configs(place.address))
    is_known = False
    for place, table in zip(masters, tables, strict=True):
        config = table.subscription_group_table.get(group)
        if config is not None:
            is_known = True
            call.line(f"{_HEADER_LINE}{place.cluster}:{place.name}{_HEADER_LINE}")
            for name, value in group_fields(config):
                call.line(f"{name:<40}=  {'' if value == 'null' else value}")
    if not is_known:
        raise FailedError(f"no broker has group {group}")


# --- Progress -------------------------------------------------------------------------------------


async def consumer_progress(call: Call) -> None:
    if "g" in call.options:
        await _progress_of_group(call)
    else:
        await _progress_of_all(call)


async def _progress_of_group(call: Call) -> None:
    options, group = call.options, call.options.text("g")
    topic, cluster = options.get("t"), options.get("c")
    progress = await call.admin.group_progress(group, topic=topic, route_topic=cluster)
    if not progress.queues:
        await _explain_no_queues(call.admin, group)
    with_clients = options.boolean("s")
    clients = await _queue_clients(call.admin, group) if with_clients else {}
    columns = ["#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset"]
    layout = _CLIENTS if with_clients else _PROGRESS
    own = ["#Client IP"] if with_clients else []
    call.row(layout, *columns, *own, "#Diff", "#Inflight", "#LastTime")
    layout = _CLIENTS_ROW if with_clients else _PROGRESS_ROW
    for queue, at in progress.queues.items():
        last = "N/A" if at.last_timestamp == 0 else seconds_text(at.last_timestamp)
        call.row(
            layout,
            front(queue.topic, 64),
            front(queue.broker_name, 32),
            queue.queue_id,
            at.broker_offset,
            at.consumer_offset,
            *([clients.get(queue, "N/A")] if with_clients else []),
            at.broker_offset - at.consumer_offset,
            at.pull_offset - at.consumer_offset,
            last,
        )
    call.line()
    call.line(f"Consume TPS: {progress.consume_tps:.2f}")
    call.line(f"Consume Diff Total: {progress.lag}")
    call.line(f"Consume Inflight Total: {progress.in_flight}")


async def _explain_no_queues(admin: "Admin", group: str) -> None:
    """FailedError says why a group has no offsets, unless its consumers are only just starting."""
    try:
        online = await admin.consumer_connections(group)
    except BrokerError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        raise FailedError(f"group {group} has no offsets and no online consumers") from error
    if online.message_model is MessageModel.BROADCASTING:
        raise FailedError(f"group {group} broadcasts: its consumers keep their offsets themselves")


async def _queue_clients(admin: "Admin", group: str) -> dict[MessageQueue, str]:
    """The address of the consumer of each queue; what cannot be found out is missing."""
    found: dict[MessageQueue, str] = {}
    try:
        infos = await admin.running_infos(group)
    except GoddardError:
        return found
    for client_id, info in infos.items():
        for queue in info.mq_table:
            found[MessageQueue.from_body(queue)] = client_id.partition("@")[0]
    return found


async def _progress_of_all(call: Call) -> None:
    admin = call.admin
    groups = sorted(group_of(topic) for topic in await admin.topics() if is_retry_topic(topic))
    masters = [place.address for place in await admin.brokers() if place.is_master]
    progress: dict[str, list[GroupProgress]] = {}
    for answer in await in_parallel(masters, admin.broker_progress):
        for group, parts in answer.groups.items():
            progress.setdefault(group, []).extend(parts)

    async def online(group: str) -> ConsumerConnections | None:
        try:
            return await admin.consumer_connections(group, brokers=masters)
        except GoddardError:
            return None

    members = await in_parallel(groups, online)
    call.row(_GROUPS, "#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total")
    for group, connections in zip(groups, members, strict=True):
        parts = progress.get(group, [])
        call.row(
            _GROUPS,
            front(group, 64),
            *_members(connections),
            int(sum(one.consume_tps for one in parts)),
            sum(one.lag for one in parts),
        )


def group_of(retry_topic: str) -> str:
    """The group of a retry topic; that of popped messages has the topic after a plus sign."""
    return retry_topic.removeprefix(RETRY_PREFIX).partition("+")[0]


def _members(online: ConsumerConnections | None) -> tuple[int, str, str, str]:
    """How many consumers are online, their lowest version, and how they consume."""
    if online is None or not online.connection_set:
        return 0, _OFFLINE, "", ""
    version = min(one.version for one in online.connection_set)
    is_push = online.consume_type is not ConsumeType.ACTIVELY
    is_passive = online.consume_type is ConsumeType.PASSIVELY
    model = str(online.message_model or "") if is_passive else ""
    kind = "PUSH" if is_push else "PULL"
    return len(online.connection_set), version_text(version), kind, model
