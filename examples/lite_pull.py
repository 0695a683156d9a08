"""Poll for messages and decide when they count as consumed, as a job does.

NAMESRV_ADDR=127.0.0.1:9876 python examples/lite_pull.py
"""

from goddard import ConsumeFrom, LitePullConsumer, Message, Producer

COUNT = 100

with Producer("lite_producer") as producer:
    producer.send_batch([Message("TopicLite", f"row {n}".encode()) for n in range(COUNT)])

consumer = LitePullConsumer(
    "lite_pull_job", consume_from=ConsumeFrom.FIRST_OFFSET, auto_commit=False, pull_batch_size=32
)
consumer.subscribe("TopicLite")
with consumer:
    rows: list[bytes] = []
    while len(rows) < COUNT:
        batch = consumer.poll(timeout_ms=5_000)
        rows += [message.body for message in batch]
        # What was polled so far counts as consumed; after a crash before this line it comes again.
        consumer.commit()
    print(f"{len(rows)} rows, the first is {min(rows).decode()}")
