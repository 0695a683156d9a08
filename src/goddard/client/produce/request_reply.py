"""Request and reply: messages that wait for a reply, and replies to them.

A request is a message with a correlation id and the client id of its producer. A consumer of it
sends a reply, which the broker does not store but pushes to that client, where the correlation id
tells which request it answers. A broker pushes only to clients that it knows, so it gets a
heartbeat before the first request to a topic.

``Requests`` belongs to one producer and its event loop.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from goddard.client.errors import (
    BrokerError,
    ClientCode,
    ClientError,
    NoReplyAddressError,
    RequestReplyTimeoutError,
    SendFailedError,
    TooManyRequestsError,
)
from goddard.client.message import Message, ReceivedMessage
from goddard.client.session import Session
from goddard.client.values import SendResult
from goddard.errors import ArgumentTypeError, RemotingError
from goddard.protocol.message import (
    PROPERTY_ARRIVE_TIME,
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TTL,
)
from goddard.protocol.names import reply_topic

_REPLY: Final = "reply"
# As many requests as one connection may have without a response.
_MAX_WAITING: Final = 65_535

SendRequest = Callable[[Message, int], Awaitable[SendResult]]
"""Sends a message within a number of milliseconds."""


def create_reply(request: Message | ReceivedMessage, body: bytes) -> Message:
    """Create the reply to a consumed request; send it to answer the request."""
    if not isinstance(request, Message | ReceivedMessage):
        raise ArgumentTypeError(
            f"the request is {request!r:.200}; give the message that a consumer received"
        )
    properties = request.properties
    cluster = properties.get(PROPERTY_CLUSTER)
    if cluster is None:
        raise NoReplyAddressError(
            "create reply message fail, requestMessage error, property[CLUSTER] is null."
        )
    reply = Message(reply_topic(cluster), body)
    reply.properties[PROPERTY_MESSAGE_TYPE] = _REPLY
    for name in (PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO_CLIENT, PROPERTY_TTL):
        value = properties.get(name)
        if value is not None:
            reply.properties[name] = value
    return reply


class Requests:
    """The requests of one producer that wait for a reply."""

    __slots__ = ("_send", "_session", "_waiting")

    def __init__(self, session: Session, send: SendRequest) -> None:
        self._session = session
        self._send = send
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, reply: ReceivedMessage) -> bool:
        """Take a reply that a broker pushed; false if no request here waits for it."""
        future = self._waiting.pop(reply.get(PROPERTY_CORRELATION_ID) or "", None)
        if future is None or future.done():
            return False
        reply.properties[PROPERTY_ARRIVE_TIME] = str(self._session.clock.now_ms())
        future.set_result(reply)
        return True

    async def request(self, message: Message, timeout_ms: int) -> ReceivedMessage:
        """Send a request and wait for its reply; the timeout is for both together."""
        if len(self._waiting) >= _MAX_WAITING:
            raise TooManyRequestsError(f"{len(self._waiting)} requests already wait for a reply")
        clock = self._session.clock
        started_ms = clock.monotonic_ms()
        correlation_id = str(self._session.environment.new_uuid())
        message.properties[PROPERTY_CORRELATION_ID] = correlation_id
        message.properties[PROPERTY_REPLY_TO_CLIENT] = self._session.client_id
        message.properties[PROPERTY_TTL] = str(timeout_ms)
        reply: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        is_sent = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._announce(message.topic)
                left_ms = timeout_ms - (clock.monotonic_ms() - started_ms)
                await self._send(message, max(1, left_ms))
                is_sent = True
                return await reply
        except TimeoutError as error:
            if is_sent:
                raise RequestReplyTimeoutError(message.topic, timeout_ms) from None
            raise _not_sent(message.topic, ClientCode.ACCESS_BROKER_TIMEOUT) from error
        except SendFailedError as error:
            raise _not_sent(message.topic, error.code, error.tries, error.address) from error
        except BrokerError as error:
            raise _not_sent(message.topic, error.code, address=error.address) from error
        except RemotingError as error:
            raise _not_sent(message.topic, address=error.address) from error
        finally:
            self._waiting.pop(correlation_id, None)

    def stop(self) -> None:
        """Fail the requests that wait for a reply."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ClientError("the producer was stopped before the reply came"))

    async def _announce(self, topic: str) -> None:
        """Have the brokers of a new topic know this client."""
        session = self._session
        wire_topic = session.with_namespace(topic)
        if session.known_publish_route(wire_topic) is None:
            # Without a route the send fails and reports the reason.
            with contextlib.suppress(ClientError, RemotingError):
                await session.refresh_route(wire_topic)
            await session.heartbeat()


def _not_sent(
    topic: str, code: int = ClientCode.CONNECT_BROKER, tries: int = 1, address: str = ""
) -> SendFailedError:
    text = f"send request message to <{topic}> fail"
    return SendFailedError(text, code=code, tries=tries, address=address)
