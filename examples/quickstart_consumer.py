"""Print every message of a topic until Ctrl-C, or SIGTERM where it runs as a service.

NAMESRV_ADDR=127.0.0.1:9876 python examples/quickstart_consumer.py
"""

from threading import current_thread

from goddard import ConsumeContext, ConsumeFrom, PushConsumer, ReceivedMessage

consumer = PushConsumer(
    "please_rename_unique_group_name_4",
    # Start offset of a group that has never consumed the topic.
    consume_from=ConsumeFrom.FIRST_OFFSET,
)
consumer.subscribe("TopicTest", "*")


@consumer.listen
def receive(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
    """Called by up to 20 threads. If it raises or returns False, messages are redelivered."""
    for message in messages:
        print(f"{current_thread().name} Receive New Messages: {message}", flush=True)


with consumer:
    print("Consumer Started. Press Ctrl-C to stop.", flush=True)
    consumer.wait()
print("Consumer Stopped.")
