"""Separate environments on one cluster: a namespace is a prefix of topics and groups.

NAMESRV_ADDR=127.0.0.1:9876 python examples/namespaces.py
"""

from goddard import ConsumeFrom, LitePullConsumer, Message, Producer


def send(namespace: str) -> None:
    with Producer("namespace_producer", namespace=namespace) as producer:
        sent = producer.send(Message("TopicOfNamespaces", namespace.encode()))
        print(f"{namespace}: sent to {sent.queue.topic}")


def receive(namespace: str) -> None:
    consumer = LitePullConsumer(
        "namespace_group", namespace=namespace, consume_from=ConsumeFrom.FIRST_OFFSET
    )
    consumer.subscribe("TopicOfNamespaces")
    with consumer:
        for message in consumer:
            print(f"{namespace}: received {message.body.decode()} from {message.topic}")
            break


for name in ("staging", "production"):
    send(name)
for name in ("staging", "production"):
    receive(name)
