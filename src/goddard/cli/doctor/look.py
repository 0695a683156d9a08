"""Asks the servers of a cluster for what ``goddard doctor`` checks.

A server that fails is a fact, not an error: the others are asked all the same. Requests are made
concurrently, and a bounded number at a time where there is one for each topic or group.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from goddard.cli.doctor.facts import (
    BrokerLook,
    Facts,
    GroupFact,
    Look,
    NameServerLook,
    TopicFact,
)
from goddard.cli.doctor.local import local_processes
from goddard.cli.terminal.reads import Reads
from goddard.cli.verbs.group_state import is_own_group, online_consumers
from goddard.client import broker_api
from goddard.client.admin.admin import Admin
from goddard.client.admin.requests import ask
from goddard.client.admin.values import BrokerPlace
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.protocol.bodies import ClusterInfo, TopicList
from goddard.protocol.codes import Permission, RequestCode
from goddard.protocol.names import (
    DLQ_PREFIX,
    is_dlq_topic,
    is_internal_topic,
    is_retry_topic,
    is_system_topic,
)

# So many topics are sampled, those with the most recent messages of each.
_MAX_SAMPLED: Final = 500
_SAMPLE: Final = 16
_MAX_GROUPS: Final = 5_000

T = TypeVar("T")
K = TypeVar("K")


class Looking:
    """Collects facts; ``unread`` has what failed, and why."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._reads = Reads()
        self.unread = self._reads.unread

    async def facts(self, seconds: float) -> Facts:
        """Everything, with ``seconds`` between the two looks."""
        first = await self.look()
        began = asyncio.get_running_loop().time()
        # The master of each name; a slave, which has the same topics, where it is missing.
        lowest = {one.place.name: one.place for one in reversed(first.answering)}
        sources = list(lowest.values())
        configs = await self._configs(first)
        topics = await self._topics(sources)
        groups = await self._groups(sources)
        dead = await self._dead_letters(first)
        largest = await self._largest(topics)
        holes = await self._topics_without_broker(first, topics)
        wiped = await self._wiped([one for one in sources if one.is_master], topics)
        addresses = [one.address for one in first.name_servers]
        addresses += [one.place.address for one in first.brokers]
        processes = await asyncio.to_thread(local_processes, addresses)
        await asyncio.sleep(max(0.0, began + seconds - asyncio.get_running_loop().time()))
        return Facts(
            first=first,
            second=await self.look(),
            configs=configs,
            topics=topics,
            topics_without_broker=holes,
            wiped_brokers=wiped,
            groups=groups,
            dead_letters=dead,
            largest=largest,
            processes=processes,
            unread=self.unread,
        )

    # --- What changes ---------------------------------------------------------------------------

    async def look(self) -> Look:
        """The servers and the lags as they are now."""
        servers = await asyncio.gather(*map(self._name_server, self._admin.name_servers))
        places = {place.address: place for _, found in servers for place in found}
        ordered = sorted(places.values(), key=lambda one: (one.name, one.broker_id))
        brokers = await asyncio.gather(*map(self._broker, ordered))
        lags: dict[str, int] = {}
        for one in brokers:
            if one.place.is_master and one.problem is None:
                for group, lag in (await self._lags(one.place)).items():
                    lags[group] = lags.get(group, 0) + lag
        return Look(
            at_ms=self._admin.clock.now_ms(),
            name_servers=[server for server, _ in servers],
            brokers=brokers,
            lags=lags,
        )

    async def _name_server(self, address: str) -> tuple[NameServerLook, list[BrokerPlace]]:
        try:
            info, topics = await asyncio.gather(
                self._ask(address, RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo),
                self._ask(address, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, TopicList),
            )
        except GoddardError as error:
            return NameServerLook(address=address, problem=str(error)), []
        places = [
            BrokerPlace(data.cluster, name, broker_id, broker_address)
            for name, data in info.broker_addr_table.items()
            for broker_id, broker_address in data.broker_addrs.items()
        ]
        known = frozenset(f"{one.name} {one.address}" for one in places)
        server = NameServerLook(address=address, brokers=known, topics=frozenset(topics.topic_list))
        return server, places

    async def _ask(self, address: str, code: RequestCode, body: type[Any]) -> Any:
        return await broker_api.read(await ask(self._admin, address, code), body)

    async def _broker(self, place: BrokerPlace) -> BrokerLook:
        try:
            runtime = await self._admin.broker_runtime(place.address)
        except GoddardError as error:
            return BrokerLook(place=place, problem=str(error))
        return BrokerLook(place=place, runtime=runtime, asked_ms=self._admin.clock.now_ms())

    async def _lags(self, place: BrokerPlace) -> dict[str, int]:
        progress = await self._reads.answer(
            f"lags on {place.name}", self._admin.broker_progress(place.address)
        )
        if progress is None:
            return {}
        return {
            group: sum(one.lag for one in parts)
            for group, parts in progress.groups.items()
            if not is_own_group(group)
        }

    # --- What does not --------------------------------------------------------------------------

    async def _each(
        self, keys: Iterable[K], read: Callable[[K], Awaitable[T | None]]
    ) -> dict[K, T]:
        asked = list(keys)
        answers = await asyncio.gather(*map(read, asked))
        return {
            key: answer for key, answer in zip(asked, answers, strict=True) if answer is not None
        }

    async def _configs(self, look: Look) -> dict[str, dict[str, str]]:
        async def read(address: str) -> dict[str, str] | None:
            return await self._reads.answer(
                f"configuration of {address}", self._admin.broker_config(address)
            )

        return await self._each((one.place.address for one in look.answering), read)

    async def _topics(self, sources: list[BrokerPlace]) -> list[TopicFact]:
        async def read(place: BrokerPlace) -> list[TopicFact] | None:
            table = await self._reads.answer(
                f"topics of {place.name}", self._admin.topic_configs(place.address)
            )
            if table is None:
                return None
            return [
                TopicFact(broker=place.name, topic=name, perm=config.perm)
                for name, config in table.topic_config_table.items()
            ]

        found = await self._each(sources, read)
        return [one for topics in found.values() for one in topics]

    async def _groups(self, sources: list[BrokerPlace]) -> list[GroupFact]:
        consumes: dict[str, bool] = {}
        for place in sources:
            table = await self._reads.answer(
                f"groups of {place.name}", self._admin.group_configs(place.address)
            )
            if table is not None:
                for name, config in table.subscription_group_table.items():
                    consumes[name] = consumes.get(name, True) and config.consume_enable
        names = sorted(name for name in consumes if not is_own_group(name))

        async def read(name: str) -> GroupFact | None:
            return await self._group(name, consumes[name])

        return list((await self._each(names[:_MAX_GROUPS], read)).values())

    async def _group(self, name: str, consumes: bool) -> GroupFact:
        online = await self._reads.answer(
            f"consumers of {name}", online_consumers(self._admin, name)
        )
        clients = [] if online is None else [one.client_id for one in online.connection_set]
        subscriptions = {}
        if len(clients) > 1:
            for client in clients:
                info = await self._reads.answer(
                    f"subscriptions of {name}", self._admin.running_info(name, client)
                )
                if info is not None:
                    subscriptions[client] = frozenset(
                        (one.topic, one.sub_string)
                        for one in info.subscription_set
                        if not is_retry_topic(one.topic)
                    )
        return GroupFact(
            name=name, consumes=consumes, members=len(clients), subscriptions=subscriptions
        )

    async def _dead_letters(self, look: Look) -> Mapping[str, int]:
        topics = {topic for one in look.name_servers for topic in one.topics if is_dlq_topic(topic)}

        async def read(topic: str) -> int | None:
            stats = await self._reads.answer(
                f"dead letters {topic}", self._admin.topic_stats(topic)
            )
            return None if stats is None else stats.message_count

        found = await self._each(sorted(topics), read)
        return {topic.removeprefix(DLQ_PREFIX): count for topic, count in found.items()}

    async def _largest(self, topics: list[TopicFact]) -> dict[str, int]:
        """The largest of the newest messages of each topic, as stored."""
        names = sorted({one.topic for one in topics if not is_internal_topic(one.topic)})
        return await self._each(names[:_MAX_SAMPLED], self._largest_of)

    async def _largest_of(self, topic: str) -> int | None:
        stats = await self._reads.answer(f"sizes of {topic}", self._admin.topic_stats(topic))
        queues = (
            []
            if stats is None
            else [
                (queue, ends)
                for queue, ends in stats.queues.items()
                if ends.max_offset > ends.min_offset
            ]
        )
        if not queues:
            return None
        queue, ends = max(queues, key=lambda item: item[1].last_update_timestamp)
        first = max(ends.min_offset, ends.max_offset - _SAMPLE)
        return await self._reads.answer(f"sizes of {topic}", self._sizes(queue, first))

    async def _sizes(self, queue: MessageQueue, first: int) -> int:
        found = await self._admin.consume_queue(queue, index=first, count=_SAMPLE)
        return max((one.physic_size for one in found.queue_data), default=0)

    async def _topics_without_broker(self, look: Look, topics: list[TopicFact]) -> list[str]:
        if any(one.problem is not None for one in look.brokers):
            return []  # their topics are not known
        known = {one.topic for one in topics}
        listed = {topic for one in look.name_servers for topic in one.topics}
        return sorted(topic for topic in listed - known if not is_internal_topic(topic))

    async def _wiped(self, sources: list[BrokerPlace], topics: list[TopicFact]) -> list[str]:
        """Brokers that may not be written by the routes, though their topics say otherwise."""
        found = []
        for place in sources:
            written = next(
                (
                    one.topic
                    for one in topics
                    if one.broker == place.name
                    and one.perm & Permission.WRITE
                    and not is_system_topic(one.topic)
                ),
                None,
            )
            if written is not None and not await self._is_written(place, written):
                found.append(place.name)
        return found

    async def _is_written(self, place: BrokerPlace, topic: str) -> bool:
        try:
            found = await self._admin.topic_route(topic)
        except GoddardError:
            return True  # a hole in the routes, which is another finding
        perms = [one.perm for one in found.queue_datas if one.broker_name == place.name]
        return not perms or any(perm & Permission.WRITE for perm in perms)
