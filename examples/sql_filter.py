"""Subscribe to the messages whose properties fulfil a condition; the broker filters them.

The broker needs ``enablePropertyFilter=true`` in its configuration: ``goddard up -c FILE``.

    NAMESRV_ADDR=127.0.0.1:9876 python examples/sql_filter.py
"""

from threading import Event

from goddard import (
    ConsumeContext,
    ConsumeFrom,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Sql,
)

received: list[str] = []
finished = Event()

with Producer("sql_producer") as producer:
    for price in range(10):
        properties = {"price": str(price), "color": "red" if price % 2 else "blue"}
        producer.send(Message("TopicSql", f"car {price}".encode(), properties=properties))


def receive(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
    for message in messages:
        received.append(message.body.decode())
        print(f"{message.body.decode()}: {message.get('color')}, {message.get('price')}")
    if len(received) == 3:
        finished.set()


consumer = PushConsumer("sql_consumer", listener=receive, consume_from=ConsumeFrom.FIRST_OFFSET)
consumer.subscribe("TopicSql", Sql("price BETWEEN 3 AND 7 AND color = 'red'"))
with consumer:
    finished.wait(60)

assert sorted(received) == ["car 3", "car 5", "car 7"], received
