"""Send 1,000 messages, as RocketMQ's own quickstart does.

NAMESRV_ADDR=127.0.0.1:9876 python examples/quickstart_producer.py
"""

from goddard import Message, Producer

# Without `name_servers` the address comes from NAMESRV_ADDR.
with Producer("please_rename_unique_group_name") as producer:
    for number in range(1_000):
        message = Message("TopicTest", f"Hello RocketMQ {number}".encode(), tags="TagA")
        # Returns when a broker has stored the message; if one fails, retries at another.
        print(producer.send(message))
