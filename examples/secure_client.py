"""Connect to a cluster with access control and TLS.

NAMESRV_ADDR=... ACCESS_KEY=... SECRET_KEY=... TOPIC=... python examples/secure_client.py

TLS=1 encrypts; CA=ca.pem encrypts and verifies the servers. Goddard's brokers have neither access
control nor TLS yet; RocketMQ's have.
"""

import os
from pathlib import Path

from goddard import Admin, Credentials, Message, MessageQueue, Producer, TlsOptions

credentials = Credentials(os.environ["ACCESS_KEY"], os.environ["SECRET_KEY"])
authority = os.environ.get("CA")
tls = None
if authority is not None:
    tls = TlsOptions(verify_peer=True, trust=Path(authority))
elif os.environ.get("TLS"):
    tls = TlsOptions()

with Producer("secure_producer", credentials=credentials, tls=tls) as producer:
    sent = producer.send(Message(os.environ["TOPIC"], b"hello"))
    print(f"sent {'with' if tls else 'without'} TLS to {sent.queue.broker_name}")

with Admin(credentials=credentials, tls=tls) as admin:
    queue = MessageQueue(sent.queue.topic, sent.queue.broker_name, sent.queue.queue_id)
    print(f"read back: {admin.messages_by_queue(queue, sent.queue_offset)[0].body.decode()}")
