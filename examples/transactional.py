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
    """The local side: does the work, and later knows whether it was done."""

    def execute(self, message: Message, argument: Any) -> TransactionState:
        """Called when the broker has the message, which nobody sees yet."""
        (account,) = message.keys
        match argument:
            case "enough money":
                database[account] = "debited"
                return TransactionState.COMMIT
            case "crash after commit":
                database[account] = "debited"
                return TransactionState.UNKNOWN  # the broker will ask `check`
            case _:
                return TransactionState.ROLLBACK

    def check(self, message: ReceivedMessage) -> TransactionState:
        """Called, perhaps in another process of the group, when the broker heard no decision."""
        (account,) = message.keys
        print(f"asked about {account}")
        return TransactionState.COMMIT if account in database else TransactionState.ROLLBACK


received: set[str] = set()
finished = Event()


def receive(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
    for message in messages:
        received.update(message.keys)
        print(f"received {message.body.decode()} of {message.keys[0]}")
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
