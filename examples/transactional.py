"""A message that is delivered if, and only if, a local transaction commits.

NAMESRV_ADDR=127.0.0.1:9876 python examples/transactional.py
"""

from threading import Event
from typing import Any

from goddard import (
    ConsumeContext,
    ConsumeFrom,
    Message,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)

database: dict[str, str] = {}


class Accounts:
    """The local transaction: does the work, and later finds out whether it committed."""

    def execute(self, message: Message, argument: Any) -> TransactionState:
        """Called when the broker has stored the message; no consumer can see it yet."""
        (account,) = message.keys
        match argument:
            case "enough money":
                database[account] = "debited"
                return TransactionState.COMMIT
            case "crash after commit":
                database[account] = "debited"
                return TransactionState.UNKNOWN  # the broker will call `check`
            case _:
                return TransactionState.ROLLBACK

    def check(self, message: ReceivedMessage) -> TransactionState:
        """Called if the broker got no decision, possibly in another process of the group."""
        (account,) = message.keys
        print(f"check of {account}")
        return TransactionState.COMMIT if account in database else TransactionState.ROLLBACK


received: set[str] = set()
finished = Event()


def receive(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
    for message in messages:
        received.update(message.keys)
        print(f"received {message.body.decode()} for {message.keys[0]}")
    if received >= {"account-1", "account-3"}:
        finished.set()


with TransactionProducer("transactional_producer", Accounts()) as producer:
    for account, case in [
        ("account-1", "enough money"),
        ("account-2", "no money"),
        ("account-3", "crash after commit"),
    ]:
        message = Message("TopicTransactional", b"debit", keys=account)
        result = producer.send_in_transaction(message, case)
        print(f"{account}: {result.state.name}")

    consumer = PushConsumer(
        "transactional_consumer", listener=receive, consume_from=ConsumeFrom.FIRST_OFFSET
    )
    consumer.subscribe("TopicTransactional")
    with consumer:
        finished.wait(60)

assert received == {"account-1", "account-3"}, received
