"""Requests about the broker as a whole: configuration, figures, cleaning up.

Handled: 25 and 26 configuration, 28 runtime information, 315 a statistic, 306, 316 and 329
cleaning, 402 which groups are to pop (none). Belongs to the loop; whatever asks or changes the disk
runs in the executor.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Final, NamedTuple

from goddard.broker.settings import BrokerConfig, Settings
from goddard.broker.stats import Stats
from goddard.broker.tables.topics import Topics
from goddard.config import MAX_UPDATE_BYTES, ProtectedPropertyError, parse_properties
from goddard.environment import Environment
from goddard.errors import ConfigError, StoreError
from goddard.protocol import names
from goddard.protocol.bodies import KvTable, encode_body
from goddard.protocol.bodies_client import RequestModeTable
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.admin import GetBrokerConfigResponse, ViewBrokerStatsRequest
from goddard.protocol.responses import NoPermissionError, SystemFailedError
from goddard.store.store import MessageStore
from goddard.store.tables import DelayOffsetTable
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

_log = logging.getLogger(__name__)

# The release whose behaviour this broker has; tools show it.
VERSION_NAME: Final = "V5_4_0"
_UNLIMITED: Final = 2**31 - 1
# RocketMQ has queues between its threads; here only sends wait for their turn. Of the others just
# the configured capacity is told: shown name, name of the property.
_QUEUES: Final = {
    "sendThreadPoolQueue": "sendThreadPoolQueueCapacity",
    "pullThreadPoolQueue": "pullThreadPoolQueueCapacity",
    "litePullThreadPoolQueue": "litePullThreadPoolQueueCapacity",
    "queryThreadPoolQueue": "queryThreadPoolQueueCapacity",
    "ackThreadPoolQueue": "ackThreadPoolQueueCapacity",
}


class _Disk(NamedTuple):
    ratio: float
    total_bytes: int
    free_bytes: int
    earliest_ms: int | None


class AdminBroker:
    """The handlers of requests about the broker itself."""

    def __init__(
        self,
        *,
        settings: Settings,
        topics: Topics,
        delays: DelayOffsetTable,
        store: MessageStore,
        stats: Stats,
        queued_sends: Callable[[], int] = lambda: 0,
        connected_slaves: Callable[[], int] = lambda: 0,
        is_active: Callable[[], bool] = lambda: True,
        executor: Executor | None = None,
        environment: Environment | None = None,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._delays = delays
        self._store = store
        self._stats = stats
        self._queued_sends = queued_sends
        self._connected_slaves = connected_slaves
        self._is_active = is_active
        self._executor = executor
        environment = environment or Environment()
        self._clock = environment.clock
        self._files = environment.files
        self._started_ms = self._clock.now_ms()
        self._first_physical_offset = store.log_max_offset
        self._permission = settings.current.broker_permission
        settings.add_listener(self._configured)

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.handle_update_config,
            RequestCode.GET_BROKER_CONFIG: self.handle_config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.handle_runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: self.handle_stats,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.handle_clean_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: self.handle_clean_topics,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.handle_clean_log,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.handle_request_modes,
        }

    # Configuration

    async def handle_update_config(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        peer = connection.remote
        _log.info("Broker receive request to update config, caller address=%s", peer)
        if not request.body:
            return request.reply()
        if len(request.body) > MAX_UPDATE_BYTES:
            raise SystemFailedError(f"an update has at most {MAX_UPDATE_BYTES} bytes")
        try:
            properties = parse_properties(str(request.body, "utf-8"))
            await self._settings.update(properties, peer, self._clock.now_ms())
        except UnicodeDecodeError as error:
            raise SystemFailedError(f"the configuration is not UTF-8 text: {error}") from error
        except ProtectedPropertyError as error:
            _log.warning("updateBrokerConfig of %s is refused: %s", peer, error)
            raise NoPermissionError(f"Can not update config in black list. {error}") from error
        except ConfigError as error:
            raise SystemFailedError(str(error)) from error
        except OSError as error:
            _log.error("the configuration was not written: %s", error)
            raise SystemFailedError(f"the configuration was not stored: {error}") from error
        return request.reply()

    def _configured(self, config: BrokerConfig) -> None:
        if config.broker_permission != self._permission:
            self._permission = config.broker_permission
            # Name servers take the topics with their new permissions only as a new version.
            self._topics.table.next_version()

    def handle_config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        version = encode_body(self._settings.data_version).decode()
        header = GetBrokerConfigResponse(version=version)
        return request.reply(ext_fields=header.encode(), body=self._settings.shown().encode())

    # Figures

    def handle_stats(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = ViewBrokerStatsRequest.decode(request.fields)
        body = self._stats.view(header.stats_name, header.stats_key)
        if body is None:
            raise SystemFailedError(
                f"The stats <{header.stats_name[:255]}> <{header.stats_key[:511]}> not exist"
            )
        return request.reply(body=encode_body(body))

    async def handle_runtime_info(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        loop = asyncio.get_running_loop()
        disk = await loop.run_in_executor(self._executor, self._look_at_disk)
        return request.reply(body=encode_body(KvTable(table=self._runtime_info(disk))))

    def _look_at_disk(self) -> _Disk:
        """Ask the disk, which may be slow to answer; runs in the executor."""
        try:
            usage = self._files.usage(self._store.config.root)
            return _Disk(
                self._store.disk_ratio(),
                usage.total_bytes,
                usage.available_bytes,
                self._store.earliest_store_time(),
            )
        except (OSError, StoreError) as error:
            _log.warning("the disk of the store does not tell its size: %s", error)
            return _Disk(-1.0, 0, 0, None)

    def _runtime_info(self, disk: _Disk) -> dict[str, str]:
        config = self._settings.current
        puts, gets = self._stats.put_totals, self._stats.get_totals
        info = {
            "bootTimestamp": str(self._started_ms),
            "runtime": _duration_text(self._clock.now_ms() - self._started_ms),
            "brokerActive": str(self._is_active()).lower(),
            "brokerVersionDesc": VERSION_NAME,
            "startAcceptSendRequestTimeStamp": str(config.accept_sends_from_ms),
            "msgPutTotalYesterdayMorning": str(puts.yesterday_morning),
            "msgPutTotalTodayMorning": str(puts.today_morning),
            "msgPutTotalTodayNow": str(puts.now),
            "msgGetTotalYesterdayMorning": str(gets.yesterday_morning),
            "msgGetTotalTodayMorning": str(gets.today_morning),
            "msgGetTotalTodayNow": str(gets.now),
            **self._stats.rates(),
            **self._store_info(disk),
            **_queue_info(config),
            "sendThreadPoolQueueSize": str(self._queued_sends()),
            **_timer_info(),
        }
        if config.broker_role == "SYNC_MASTER":
            # Beyond RocketMQ: what a slave has to know before it becomes the master.
            info["replicasPerMessage"] = str(config.replica_policy.replicas_per_message)
            info["connectedSlaves"] = str(self._connected_slaves())
        for level, offset in self._delays.offsets.items():
            end = self._store.max_offset(names.SCHEDULE_TOPIC, level - 1)
            info[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
        return info

    def _store_info(self, disk: _Disk) -> dict[str, str]:
        store = self._store
        end = store.log_max_offset
        stored_bytes = max(0, end - self._first_physical_offset)
        # RocketMQ divides by it, and so counts one message where there is none.
        stored_count = max(1, self._stats.stored_count)
        times = self._stats.put_times
        ratio = str(disk.ratio)
        return {
            "putMessageTimesTotal": str(stored_count),
            "putMessageSizeTotal": str(stored_bytes),
            "putMessageAverageSize": str(stored_bytes / stored_count),
            "putMessageFailedTimes": str(self._stats.failed_count),
            "putMessageEntireTimeMax": str(times.max_ms),
            "getMessageEntireTimeMax": str(self._stats.longest_get_ms),
            "putMessageDistributeTime": times.distribution(),
            "putLatency99": times.percentile(0.99),
            "putLatency999": times.percentile(0.999),
            "dispatchMaxBuffer": "0",
            "dispatchBehindBytes": str(store.dispatch_behind_bytes),
            "pageCacheLockTimeMills": "0",
            "remainHowManyDataToFlush": size_text(max(0, end - store.flushed_offset)),
            "remainTransientStoreBufferNumbs": str(_UNLIMITED),
            "earliestMessageTimeStamp": str(-1 if disk.earliest_ms is None else disk.earliest_ms),
            "commitLogMinOffset": str(store.log_min_offset),
            "commitLogMaxOffset": str(end),
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{store.log.directory}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": (
                f"Total : {size_text(disk.total_bytes)}, Free : {size_text(disk.free_bytes)}."
            ),
        }

    # Cleaning up

    async def handle_clean_queues(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        """Delete queues whose messages have all left the log."""
        _log.info("AdminBrokerProcessor#cleanExpiredConsumeQueue: start.")
        loop = asyncio.get_running_loop()
        is_system = self._topics.is_system
        await loop.run_in_executor(self._executor, self._store.delete_stale_queues, is_system)
        _log.info("AdminBrokerProcessor#cleanExpiredConsumeQueue: end.")
        return request.reply()

    async def handle_clean_topics(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        """Delete the queues of topics that are no more."""
        _log.warning("invoke cleanUnusedTopic start.")
        loop = asyncio.get_running_loop()
        for topic in self._store.queues.topics():
            is_used = topic in self._topics or self._topics.is_system(topic)
            if not is_used and not names.is_lmq(topic):
                await loop.run_in_executor(self._executor, self._store.delete_topic, topic)
        _log.warning("invoke cleanUnusedTopic end.")
        return request.reply()

    def handle_clean_log(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Delete expired files of the log now, whatever the hour."""
        _log.warning("invoke deleteExpiredCommitLog by %s", connection.remote)
        self._store.clean_soon()
        return request.reply()

    # For slaves and tools

    def handle_request_modes(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        return request.reply(body=encode_body(RequestModeTable()))


def _queue_info(config: BrokerConfig) -> dict[str, str]:
    properties = config.properties()
    info = {
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": properties["endTransactionPoolQueueCapacity"],
    }
    for name, capacity in _QUEUES.items():
        info[f"{name}Size"] = "0"
        info[f"{name}HeadWaitTimeMills"] = "0"
        info[f"{name}Capacity"] = properties[capacity]
    return info


def _timer_info() -> dict[str, str]:
    return {
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": "0",
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
    }


def _duration_text(duration_ms: int) -> str:
    minutes, seconds = divmod(max(0, duration_ms) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days:,} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def size_text(size_bytes: int) -> str:
    """A size as RocketMQ writes it: ``512 B``, ``1.5 KiB``, ``3.0 GiB``."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    exponent = (size_bytes.bit_length() - 1) // 10
    return f"{size_bytes / 1024**exponent:.1f} {'KMGTPE'[exponent - 1]}iB"
