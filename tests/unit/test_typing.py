"""Type checkers see the signatures of the blocking clients, whose methods are made at run time."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
from concurrent.futures import Future
from typing import assert_type

from goddard import Admin, ConsumeContext, LitePullConsumer, Message, MessageQueue, Producer
from goddard import PushConsumer, ReceivedMessage, SendResult, TransactionProducer

message = Message("orders", b"hello")
with Producer("group", name_servers="localhost:9876", retries=3) as producer:
    assert_type(producer, Producer)
    assert_type(producer.send(message, timeout_ms=3), SendResult)
    assert_type(producer.send_async(message), Future[SendResult])
    assert_type(producer.send_batch([message], queue=None), list[SendResult])
    assert_type(Producer.send(producer, message), SendResult)
push = PushConsumer("group", consume_threads=3, orderly=True)
assert_type(push.subscribe("orders", "a || b"), None)
assert_type(push.assigned_queues(), set[MessageQueue])
lite = LitePullConsumer("group", pull_batch_size=3)
assert_type(lite.poll(10), list[ReceivedMessage])
assert_type(next(lite), ReceivedMessage)
admin = Admin("localhost:9876", timeout_ms=4)
assert_type(admin.topics(), list[str])
assert_type(admin.message("orders", "id").body, bytes)
context = ConsumeContext(MessageQueue("orders", "broker-a", 0))
context.ack_index = 3

Producer()  # wrong
Producer("group", retry=3)  # wrong
Producer("group", retries="3")  # wrong
TransactionProducer("group")  # wrong
producer.send("text")  # wrong
producer.send()  # wrong
producer.send(message, timeout=3)  # wrong
producer.send(message, timeout_ms="3")  # wrong
number: int = producer.send(message)  # wrong
PushConsumer("group", consume_threads="3")  # wrong
PushConsumer("group", consume_thread=3)  # wrong
push.subscribe(3)  # wrong
push.suspend(1)  # wrong
lite.poll("10")  # wrong
context.ack_indx = 3  # wrong
Admin(timeout_ms="4")  # wrong
admin.topics(clusters="c")  # wrong
admin.create_topic(3)  # wrong
text: str = admin.topics()  # wrong
"""


def test_mypy_sees_the_signatures_of_a_users_program(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", str(path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    found = {int(line) for line in re.findall(r"program\.py:(\d+): error", done.stdout)}
    lines = PROGRAM.splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert found == wrong, done.stdout + done.stderr
