"""What a broker can be told, under RocketMQ's property names, and the configuration in force.

``BrokerConfig`` is a value: fields with a meaning here, and every other property of RocketMQ 5.4.0
in ``unused_properties``, kept and read back. The store's properties are among the latter;
``store_config`` reads them.

``Settings`` holds the configuration in force and belongs to the loop: keep the Settings, not the
BrokerConfig, wherever a change over the wire should take effect.
"""

import asyncio
import dataclasses
import logging
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Final

from goddard.broker.consuming.locks import LOCK_LIFE_MS
from goddard.broker.properties import JAVA_DEFAULTS
from goddard.config import (
    Configuration,
    format_properties,
    is_protected,
    setting,
    settings_of,
)
from goddard.environment.files import Files, SystemFiles
from goddard.errors import ConfigError
from goddard.files import replace_file
from goddard.protocol.bodies import DataVersion
from goddard.protocol.names import TRACE_TOPIC
from goddard.protocol.record import Host
from goddard.replication.acknowledgements import ReplicaPolicy
from goddard.replication.frames import MAX_DATA_BYTES
from goddard.store.config import StoreConfig
from goddard.transport.connection import address_text

_log = logging.getLogger(__name__)

_MAX_TOPICS: Final = 100_000
_MAX_GROUPS: Final = 100_000
_MAX_OFFSETS: Final = 1_000_000
QUEUE_LOCK_PROPERTY: Final = "rocketmq.broker.rebalance.lockMaxLiveTime"
_MAX_INT64: Final = 2**63 - 1
_ROLES: Final = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
_REGISTER_PERIOD_MS: Final = (10_000, 60_000)
_VIP_DISTANCE: Final = 2

# Who this broker is, whom it talks to and on which ports is settled when it starts.
_FIXED_AT_START: Final = frozenset(
    {
        "brokerClusterName",
        "brokerIP1",
        "brokerIP2",
        "brokerId",
        "brokerName",
        "brokerRole",
        "controllerAddr",
        "enableSlaveActingMaster",
        "fetchNamesrvAddrByAddressServer",
        "haListenPort",
        "listenPort",
        "messageStorePlugIn",
        "metricsGrpcExporterTarget",
        "metricsPromExporterHost",
        "metricsPromExporterPort",
        "namesrvAddr",
        "skipPreOnline",
        "socksProxyConfig",
        "totalReplicas",
        "useTLS",
    }
)
# Nor may a peer set these by an update; a promotion or a demotion does.
_ROLE_PROPERTIES: Final = frozenset({"brokerId", "brokerRole"})
# Properties that are refused because ignoring them would be unsafe: which values (a pattern for the
# whole text, in lower case), and what the broker would do instead.
_OPEN_TO_ALL: Final = "the broker would take requests from anyone"
_UNREPLICATED: Final = "messages would be on this machine only"
_UNSUPPORTED: Final[Mapping[str, tuple[str, str]]] = {
    "aclEnable": ("true", _OPEN_TO_ALL),
    "allAckInSyncStateSet": ("true", _UNREPLICATED),
    "authenticationEnabled": ("true", _OPEN_TO_ALL),
    "authorizationEnabled": ("true", _OPEN_TO_ALL),
    "defaultMessageRequestMode": ("pop", "consumers would pull"),
    "enableControllerMode": ("true", _UNREPLICATED),
    "enableDLegerCommitLog": ("true", _UNREPLICATED),
    "enableLmq": ("true", "light queues would stay empty"),
    "enableMultiDispatch": ("true", "messages would be in one queue each"),
    "messageIndexEnable": ("false", "the key index would be written nevertheless"),
    "messageStorePlugIn": (".+", "messages would be kept without that plug-in"),
    "metricsExporterType": ("(?!(disable|0)$).+", "nobody would get metrics"),
    "recallMessageEnable": ("true", "recalled messages would be delivered"),
    "storeType": ("defaultrocksdb", "messages would be kept in other files"),
    "tls.enable": ("true", "the broker would talk to others in the clear"),
    "tls.server.mode": ("enforcing", "the broker would talk to clients in the clear"),
    "tls.server.need.client.auth": ("require", _OPEN_TO_ALL),
    "useTLS": ("true", "the broker would talk to others in the clear"),
}
# Other places where RocketMQ finds its name servers, if namesrvAddr is not set.
_NAME_SERVER_SOURCES: Final = ("fetchNamesrvAddrByAddressServer", "fetchNameSrvAddrByDnsLookup")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")
_SWITCHES: Final = ("true", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(Configuration):
    """Everything a broker can be told."""

    # Identity, addresses and places
    broker_name: str = setting("DEFAULT_BROKER", "brokerName")
    cluster_name: str = setting("DefaultCluster", "brokerClusterName")
    broker_id: int = setting(0, "brokerId", high=_MAX_INT64)
    broker_role: str = setting("ASYNC_MASTER", "brokerRole")
    broker_ip1: str = setting("127.0.0.1", "brokerIP1")
    broker_ip2: str = setting("127.0.0.1", "brokerIP2")
    bind_address: str = setting("0.0.0.0", "bindAddress")
    listen_port: int = setting(10911, "listenPort", high=65535)
    # Zero: the port after the one listened on.
    ha_listen_port: int = setting(0, "haListenPort", high=65535)
    namesrv_addr: str | None = setting(None, "namesrvAddr")
    rocketmq_home: str | None = setting(None, "rocketmqHome")
    config_path: str | None = setting(None, "brokerConfigPath")
    config_black_list: str = setting("configBlackList;brokerConfigPath", "configBlackList")
    store_path: str = setting("store", "storePathRootDir")
    commit_log_path: str | None = setting(None, "storePathCommitLog")
    region_id: str = setting("DefaultRegion", "regionId")

    # Permissions and automatic creation
    broker_permission: int = setting(6, "brokerPermission", high=7)
    default_topic_queues: int = setting(8, "defaultTopicQueueNums", low=1, high=65535)
    auto_create_topic: bool = setting(True, "autoCreateTopicEnable")
    auto_create_group: bool = setting(True, "autoCreateSubscriptionGroup")
    create_system_group: bool = setting(True, "enableCreateSysGroup")
    cluster_topic_enable: bool = setting(True, "clusterTopicEnable")
    broker_topic_enable: bool = setting(True, "brokerTopicEnable")
    trace_topic_enable: bool = setting(False, "traceTopicEnable")
    trace_topic: str = setting(TRACE_TOPIC, "msgTraceTopicName")
    trace_on: bool = setting(True, "traceOn")
    timer_wheel_enable: bool = setting(True, "timerWheelEnable")
    revive_queues: int = setting(8, "reviveQueueNum", low=1, high=65535)
    # RocketMQ has no such limits, so a broker shows them only if they are set.
    max_topics: int | None = setting(None, "maxTopics", low=1)
    max_groups: int | None = setting(None, "maxSubscriptionGroups", low=1)
    max_offsets: int | None = setting(None, "maxConsumerOffsets", low=1)
    max_bulk_read_bytes: int | None = setting(None, "maxTransferBytesOnBulkRead", high=16 << 20)
    validate_system_topic: bool = setting(True, "validateSystemTopicWhenUpdateTopic")
    clear_retry_topic_with_topic: bool = setting(True, "clearRetryTopicWhenDeleteTopic")

    # Sending
    max_message_bytes: int = setting(4 << 20, "maxMessageSize", low=1)
    delay_levels: str = setting(JAVA_DEFAULTS["messageDelayLevel"], "messageDelayLevel")
    # Wall time before which sends are refused (a broker that should warm up first).
    accept_sends_from_ms: int = setting(0, "startAcceptSendRequestTimeStamp", high=_MAX_INT64)
    sync_flush_timeout_ms: int = setting(5_000, "syncFlushTimeout", low=1)
    reject_transactions: bool = setting(False, "rejectTransactionMessage")
    store_replies: bool = setting(True, "storeReplyMessageEnable")

    # Fast failure
    fast_failure: bool = setting(True, "brokerFastFailureEnable")
    wait_in_send_queue_ms: int = setting(200, "waitTimeMillsInSendQueue", low=1)
    # An append that takes longer has the sends refused that came meanwhile.
    page_cache_busy_ms: int = setting(1_000, "osPageCacheBusyTimeOutMills", low=1)
    send_queue_capacity: int = setting(10_000, "sendThreadPoolQueueCapacity", low=1)
    pull_queue_capacity: int = setting(100_000, "pullThreadPoolQueueCapacity", low=1)
    query_queue_capacity: int = setting(20_000, "queryThreadPoolQueueCapacity", low=1)

    # Pulling and filtering
    long_polling: bool = setting(True, "longPollingEnable")
    short_polling_ms: int = setting(1_000, "shortPollingTimeMills", low=1)
    lite_pull_enable: bool = setting(True, "litePullMessageEnable")
    reject_pull_consumer: bool = setting(False, "rejectPullConsumerEnable")
    property_filter: bool = setting(False, "enablePropertyFilter")
    filter_retries: bool = setting(False, "filterSupportRetry")
    filter_life_ms: int = setting(24 * 3600 * 1000, "filterDataCleanTimeSpan", high=_MAX_INT64)
    query_max: int = setting(32, "defaultQueryMaxNum", low=1, high=10_000)
    slave_reads: bool = setting(False, "slaveReadEnable")
    disable_slow_consumers: bool = setting(False, "disableConsumeIfConsumerReadSlowly")
    slow_consumer_bytes: int = setting(16 << 30, "consumerFallbehindThreshold", high=_MAX_INT64)
    memory_percent: int = setting(40, "accessMessageInMemoryMaxRatio", low=1, high=100)
    server_side_reset: bool = setting(True, "useServerSideResetOffset")

    # Clients
    notify_consumer_ids_changed: bool = setting(True, "notifyConsumerIdsChangedEnable")
    notify_consumers_in_real_time: bool = setting(True, "realTimeNotifyConsumerChange")
    register_producers: bool = setting(True, "enableRegisterProducer")
    channel_expired_ms: int = setting(120_000, "channelExpiredTimeout", low=1)
    # A system property of Java's, which is not among those that a broker shows unless it is set.
    queue_lock_life: str | None = setting(None, QUEUE_LOCK_PROPERTY)

    # Transactions
    transaction_timeout_ms: int = setting(6_000, "transactionTimeOut")
    transaction_check_max: int = setting(15, "transactionCheckMax")
    transaction_check_interval_ms: int = setting(30_000, "transactionCheckInterval", low=10)
    transaction_op_bytes: int = setting(4_096, "transactionOpMsgMaxSize", low=1)
    transaction_op_interval_ms: int = setting(3_000, "transactionOpBatchInterval", low=1)

    # Name servers
    register_period_ms: int = setting(30_000, "registerNameServerPeriod")
    register_timeout_ms: int = setting(24_000, "registerBrokerTimeoutMills", low=1)
    register_compressed: bool = setting(False, "compressedRegister")
    enable_slave_acting_master: bool = setting(False, "enableSlaveActingMaster")
    broker_not_active_timeout_ms: int = setting(10_000, "brokerNotActiveTimeoutMillis", low=1)
    member_poll_ms: int = setting(1_000, "syncBrokerMemberGroupPeriod", low=10)
    remote_escape: bool = setting(False, "enableRemoteEscape")
    skip_pre_online: bool = setting(False, "skipPreOnline")
    total_replicas: int = setting(1, "totalReplicas", low=1)

    # Replication
    ha_batch_bytes: int = setting(32 << 10, "haTransferBatchSize", low=1, high=MAX_DATA_BYTES)
    ha_heartbeat_ms: int = setting(5_000, "haSendHeartbeatInterval", low=1)
    ha_silence_ms: int = setting(20_000, "haHousekeepingInterval", low=1)
    ha_max_gap_bytes: int = setting(256 << 20, "haMaxGapNotInSync", low=1, high=_MAX_INT64)
    in_sync_replicas: int = setting(1, "inSyncReplicas", low=1)
    min_in_sync_replicas: int = setting(1, "minInSyncReplicas", low=1)
    auto_in_sync_replicas: bool = setting(False, "enableAutoInSyncReplicas")
    slave_timeout_ms: int = setting(3_000, "slaveTimeout", low=1)
    ha_master_address: str | None = setting(None, "haMasterAddress")
    sync_from_last_file: bool = setting(False, "syncFromLastFile")
    ha_flow_control: bool = setting(False, "haFlowControlEnable")
    ha_bytes_per_second: int = setting(
        100 << 20, "maxHaTransferByteInSecond", low=1, high=_MAX_INT64
    )

    # Housekeeping and transport
    flush_offsets_ms: int = setting(5_000, "flushConsumerOffsetInterval", low=1)
    flush_delay_offsets_ms: int = setting(10_000, "flushDelayOffsetInterval", low=1)
    idle_seconds: int = setting(120, "serverChannelMaxIdleTimeSeconds", low=1)
    backlog: int = setting(1024, "serverSocketBacklog", low=1)
    # Zero, as in Java, leaves the mark to the transport.
    write_buffer_high_bytes: int = setting(0, "writeBufferHighWaterMark")

    unused_properties: Mapping[str, str] = field(default_factory=lambda: dict(WITHOUT_FIELD))

    def __post_init__(self) -> None:
        if self.broker_role not in _ROLES:
            raise ConfigError(
                f"brokerRole={self.broker_role[:80]}: one of {', '.join(_ROLES)} is needed"
            )
        for name in (self.broker_name, self.cluster_name):
            if not name or not name.isprintable() or len(name) > 127:
                raise ConfigError(
                    f"brokerName and brokerClusterName have 1 to 127 characters: {name[:80]!r}"
                )
        if self.queue_lock_ms < 1:
            raise ConfigError(f"{QUEUE_LOCK_PROPERTY}={self.queue_lock_life}: 1 at least is needed")
        self.store_config()

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> "BrokerConfig":
        return cls().updated(properties)

    @property
    def broker_address(self) -> str:
        """Where clients reach this broker, as the name servers tell them."""
        return address_text((self.broker_ip1, self.listen_port))

    @property
    def topic_limit(self) -> int:
        return self.max_topics or _MAX_TOPICS

    @property
    def group_limit(self) -> int:
        return self.max_groups or _MAX_GROUPS

    @property
    def offset_limit(self) -> int:
        return self.max_offsets or _MAX_OFFSETS

    @property
    def ha_port(self) -> int:
        """The port that slaves connect to. A master listens on it."""
        return self.ha_listen_port or self.listen_port + 1

    @property
    def ha_address(self) -> str:
        """Where slaves reach this broker, as the name servers tell them; empty for a slave."""
        return "" if self.is_slave else address_text((self.broker_ip2, self.ha_port))

    @property
    def queue_lock_ms(self) -> int:
        """How long an orderly consumer has a queue for itself, unless it asks again."""
        text = (self.queue_lock_life or str(LOCK_LIFE_MS)).strip()
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise ConfigError(f"{QUEUE_LOCK_PROPERTY}={text[:80]}: a number is needed")
        return int(text)

    def properties(self) -> dict[str, str]:
        return {**Configuration.properties(self), "haListenPort": str(self.ha_port)}

    @property
    def store_host(self) -> Host:
        """The address that stored records and message ids carry."""
        return Host.parse(self.broker_address)

    @property
    def vip_port(self) -> int | None:
        """The second port, which 4.x clients use for sends on request."""
        port = self.listen_port - _VIP_DISTANCE
        return port if port > 0 else None

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses in ``namesrvAddr``, which are parted by semicolons."""
        addresses = (self.namesrv_addr or "").replace(",", ";").split(";")
        return tuple(dict.fromkeys(text.strip() for text in addresses if text.strip()))

    @property
    def register_seconds(self) -> float:
        """How often to register; Java allows 10 to 60 seconds."""
        low, high = _REGISTER_PERIOD_MS
        return max(low, min(self.register_period_ms, high)) / 1000

    @property
    def is_slave(self) -> bool:
        """Whether this broker copies another, and so refuses everything that would write."""
        return self.broker_role == "SLAVE"

    @property
    def starts_isolated(self) -> bool:
        """Whether to wait for the others of the group before going online."""
        return (
            self.enable_slave_acting_master and self.total_replicas > 1 and not self.skip_pre_online
        )

    @property
    def replica_policy(self) -> ReplicaPolicy:
        """What a message waits for before it is acknowledged."""
        return ReplicaPolicy(
            is_synchronous=self.broker_role == "SYNC_MASTER",
            in_sync_replicas=self.in_sync_replicas,
            min_in_sync_replicas=self.min_in_sync_replicas,
            is_auto=self.auto_in_sync_replicas,
            max_gap_bytes=self.ha_max_gap_bytes,
            timeout_ms=self.slave_timeout_ms,
        )

    @property
    def is_writable(self) -> bool:
        return bool(self.broker_permission & 2)

    @property
    def is_readable(self) -> bool:
        return bool(self.broker_permission & 4)

    def store_config(self) -> StoreConfig:
        """The configuration of the store: its own properties, in its own units."""
        properties = self.properties()
        # A mark above the next one never comes to count, so it is the same as that one.
        ratio = 1.0
        for name in _PERCENTAGES:
            ratio = min(ratio, _as_ratio(name, properties[name]))
            properties[name] = str(ratio)
        config = StoreConfig.from_properties(local_path(self.store_path), properties)
        if self.commit_log_path is None:
            return config
        if "," in self.commit_log_path:
            raise ConfigError("storePathCommitLog: a log over several folders is not supported")
        return dataclasses.replace(config, log_path=local_path(self.commit_log_path))

    def check_supported(self) -> None:
        """ConfigError when a broker of this configuration would do less than it was asked for."""
        properties = self.properties()
        _check_supported(properties)
        if not self.name_servers:
            for name in _NAME_SERVER_SOURCES:
                if properties.get(name, "").strip().lower() == "true":
                    raise ConfigError(
                        f"{name}=true is not supported yet: the broker would not register "
                        "anywhere; set namesrvAddr, or remove the line to run without"
                    )

    def protects(self, name: str) -> bool:
        """Whether no peer may set this property: a list of what is safe, not of what is not.

        A known property whose value can only be a number or a switch names no place and runs
        nothing; of the others those are taken whose name does not look like a place or a command.
        """
        if is_protected(name, self.config_black_list) and not _is_plain(name):
            return True
        listed = {entry.strip().lower() for entry in self.config_black_list.split(";")}
        return name in _FIXED_AT_START or name.lower() in listed

    def changes_at_run_time(self, name: str) -> bool:
        return name in _ROLE_PROPERTIES or not self.protects(name)

    def known_names(self) -> frozenset[str]:
        return Configuration.known_names(self) | frozenset(_UNSUPPORTED)

    def updated_by_peer(self, properties: Mapping[str, str]) -> "BrokerConfig":
        """With properties from the network; ConfigError names the first that is wrong."""
        changed = Configuration.updated_by_peer(self, properties)
        _check_supported(properties)
        for name, text in properties.items():
            known = JAVA_DEFAULTS.get(name, "")
            if known in _SWITCHES and text.strip().lower() not in _SWITCHES:
                raise ConfigError(f"{name}={text[:80]}: true or false is needed")
            # The store has checked deleteWhen, which may be a list such as 01;02.
            is_number = name != "deleteWhen" and _NUMBER.fullmatch(known)
            if is_number and not _NUMBER.fullmatch(text.strip()):
                raise ConfigError(f"{name}={text[:80]}: a number is needed")
        return changed


# Percent here, ratios in the store; the highest first.
_PERCENTAGES: Final = (
    "diskSpaceWarningLevelRatio",
    "diskSpaceCleanForciblyRatio",
    "diskMaxUsedSpaceRatio",
)

WITHOUT_FIELD: Final[Mapping[str, str]] = {
    name: value for name, value in JAVA_DEFAULTS.items() if name not in settings_of(BrokerConfig)
}


def _check_supported(properties: Mapping[str, str]) -> None:
    for name, (values, instead) in _UNSUPPORTED.items():
        text = properties.get(name, "").strip()
        if re.fullmatch(values, text.lower()):
            raise ConfigError(
                f"{name}={text} is not supported yet: {instead}; remove the line to run without"
            )


def _is_plain(name: str) -> bool:
    known = JAVA_DEFAULTS.get(name, "")
    return known in _SWITCHES or _NUMBER.fullmatch(known) is not None


def _as_ratio(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise ConfigError(f"{name}={text[:80]}: a number is needed") from error
    return value / 100 if value > 1 else value


def local_path(text: str) -> Path:
    """A path of a configuration file. One written for Windows is, elsewhere, a relative one."""
    if os.name != "nt" and re.match(r"[A-Za-z]:[\\/]", text):
        return Path(PureWindowsPath(text).as_posix())
    return Path(text)


class Settings:
    """``current`` is the configuration in force; changes are kept in its file."""

    def __init__(
        self,
        config: BrokerConfig,
        executor: Executor | None = None,
        files: Files | None = None,
    ) -> None:
        self.current = config
        self.data_version = DataVersion()
        self._executor = executor
        self._files = files or SystemFiles()
        self._listeners: list[Callable[[BrokerConfig], None]] = []
        self._one_at_a_time = asyncio.Lock()

    def add_listener(self, listener: Callable[[BrokerConfig], None]) -> None:
        """Call ``listener`` with each new configuration, on the loop."""
        self._listeners.append(listener)

    def replace(self, config: BrokerConfig) -> None:
        """Put another configuration in force, from inside the process; nothing is written."""
        self.current = config
        for listener in self._listeners:
            listener(config)

    async def update(self, properties: Mapping[str, str], peer: str, now_ms: int) -> None:
        """Take properties from a peer; ConfigError when one of them may not be or is wrong."""
        # A task of its own: what is being written also takes effect when the peer has gone away.
        updating = asyncio.create_task(self._update(properties, peer, now_ms))
        await asyncio.shield(updating)

    async def change_role(self, role: str, broker_id: int) -> None:
        """Become another broker of the group, also after a restart: the file is written first."""
        async with self._one_at_a_time:
            changed = dataclasses.replace(self.current, broker_role=role, broker_id=broker_id)
            if changed.config_path is not None:
                await self._write(changed)
            self.replace(changed)

    async def drain(self) -> None:
        """Wait until no update is under way."""
        async with self._one_at_a_time:
            pass

    async def _update(self, properties: Mapping[str, str], peer: str, now_ms: int) -> None:
        async with self._one_at_a_time:
            before = self.current
            changed = before.updated_by_peer(properties)
            if changed == before:
                return
            if before.config_path is not None:
                await self._write(changed)
            shown = before.properties()
            for name, value in changed.properties().items():
                if shown.get(name) != value:
                    _log.info(
                        "Replace, key: %s, value: %s -> %s, by %s",
                        name,
                        shown.get(name),
                        value,
                        peer,
                    )
            self.data_version = DataVersion(counter=self.data_version.counter + 1, timestamp=now_ms)
            self.replace(changed)

    async def _write(self, config: BrokerConfig) -> None:
        data = format_properties(config.properties()).encode()
        path = local_path(self.current.config_path or "")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, replace_file, self._files, path, data)

    def shown(self) -> str:
        """Every property, as a peer that asks sees it."""
        return format_properties(self.current.properties())


def with_port(config: BrokerConfig, port: int) -> BrokerConfig:
    """With the port that was found where any free one was asked for."""
    return dataclasses.replace(config, listen_port=port)
