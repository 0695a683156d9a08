"""A fake cluster with scripted responses, for cases that rarely happen with a real one.

    async with FakeCluster("broker-a", "broker-b") as cluster:
        cluster.broker("broker-a").answer = lambda request: request.reply(ResponseCode.SYSTEM_BUSY)
        ...                       # name_servers=cluster.namesrv

It serves routes over real sockets and records every request. By default a broker stores nothing and
answers sends with SEND_OK.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from goddard.protocol.bodies import BrokerData, QueueData, TopicRoute, encode_body
from goddard.protocol.codes import Permission, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import decode_send
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.server import Server, ServerOptions
from tests.support.rules import ANY_RULE

_SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
_RECORD_BYTES = 100

Answerer = Callable[[RemotingCommand], RemotingCommand | Awaitable[RemotingCommand | None] | None]


async def mute(request: RemotingCommand) -> None:
    """Never answers."""
    await asyncio.Event().wait()


async def answered(answerer: Answerer, request: RemotingCommand) -> RemotingCommand | None:
    answer = answerer(request)
    return answer if answer is None or isinstance(answer, RemotingCommand) else await answer


class FakeBroker:
    """One broker: ``answer`` answers sends, ``answers`` other codes; all else succeeds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answer: Answerer = self.store
        self.answers: dict[int, Answerer] = {}
        # Codes of requests that are never answered.
        self.silent: set[int] = set()
        self.requests: list[RemotingCommand] = []
        self.connections: list[Connection] = []
        # Set when the first request with a code has arrived.
        self.asked: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._stored = 0
        handlers = Handlers()
        handlers.set_fallback(self._handle)
        self.server = Server(ServerOptions(), handlers, on_open=self.connections.append)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def sends(self) -> list[RemotingCommand]:
        return [request for request in self.requests if request.code in _SENDS]

    def store(self, request: RemotingCommand) -> RemotingCommand:
        """The response to a successful send."""
        header = decode_send(request.fields)
        self._stored += 1
        fields = {
            "msgId": f"7F00000100002A9F{self._stored * _RECORD_BYTES:016X}",
            "queueId": str(header.queue_id),
            "queueOffset": str(self._stored - 1),
        }
        return request.reply(ext_fields=fields)

    def stored_as(self, code: ResponseCode) -> Answerer:
        """Responses that store the message and have another code, such as FLUSH_DISK_TIMEOUT."""

        def answer(request: RemotingCommand) -> RemotingCommand:
            response = self.store(request)
            response.code = code
            return response

        return answer

    async def _handle(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand | None:
        self.requests.append(request)
        self.asked[request.code].set()
        if request.code in self.silent:
            await mute(request)
        if request.code in _SENDS:
            return await answered(self.answer, request)
        if (answer := self.answers.get(request.code)) is not None:
            return await answered(answer, request)
        return request.reply()


class FakeCluster:
    """A name server and brokers, each with ``queues`` queues of every topic in ``topics``."""

    def __init__(self, *brokers: str, queues: int = 4, topics: tuple[str, ...] = ("T",)) -> None:
        self._brokers = {name: FakeBroker(name) for name in brokers}
        self._removed: list[FakeBroker] = []
        # Addresses of brokers outside this cluster, or that replace a broker's own (for a proxy).
        self.address_overrides: dict[str, str] = {}
        self.queues = queues
        self.topics = set(topics)
        self.order_conf: str | None = None
        self.perm = int(Permission.READ | Permission.WRITE)
        self.route_requests: list[str] = []
        # Responds to route requests, if set.
        self.answer_route: Answerer | None = None
        self._exits = contextlib.AsyncExitStack()
        handlers = Handlers()
        handlers.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route, ANY_RULE)
        self.name_server = Server(ServerOptions(), handlers)

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.name_server.port}"

    def broker(self, name: str) -> FakeBroker:
        return self._brokers[name]

    def forget(self, name: str) -> None:
        """Remove a broker from the routes; it continues to run."""
        self._removed.append(self._brokers.pop(name))

    @property
    def brokers(self) -> list[FakeBroker]:
        return list(self._brokers.values())

    async def __aenter__(self) -> Self:
        await self._exits.enter_async_context(self.name_server)
        for broker in self._brokers.values():
            await self._exits.enter_async_context(broker.server)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._exits.aclose()

    async def _route(self, request: RemotingCommand, _: Connection) -> RemotingCommand | None:
        topic = request.fields.get("topic", "")
        self.route_requests.append(topic)
        if self.answer_route is not None:
            return await answered(self.answer_route, request)
        if topic not in self.topics:
            remark = f"No topic route info in name server for the topic: {topic}"
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark)
        addresses = {name: broker.address for name, broker in self._brokers.items()}
        addresses |= self.address_overrides
        route = TopicRoute(
            order_topic_conf=self.order_conf,
            queue_datas=[
                QueueData(
                    broker_name=name,
                    perm=self.perm,
                    read_queue_nums=self.queues,
                    write_queue_nums=self.queues,
                )
                for name in addresses
            ],
            broker_datas=[
                BrokerData(broker_name=name, cluster="DefaultCluster", broker_addrs={0: address})
                for name, address in addresses.items()
            ],
        )
        return request.reply(body=encode_body(route))
