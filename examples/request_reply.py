"""Ask by message and wait for the answer.

NAMESRV_ADDR=127.0.0.1:9876 python examples/request_reply.py
"""

from goddard import ConsumeContext, Message, Producer, PushConsumer, ReceivedMessage, create_reply

with Producer("answering_producer") as answers, Producer("asking_producer") as questions:
    # The topic has to exist before its consumer can be given queues.
    questions.send(Message("TopicRequest", b"hello"))

    def answer(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
        """Consume a question, produce the answer; it goes straight to who asked."""
        for message in messages:
            if message.get("REPLY_TO_CLIENT"):
                answers.send(create_reply(message, message.body.upper()))

    consumer = PushConsumer("answering_consumer", listener=answer)
    consumer.subscribe("TopicRequest")
    with consumer:
        for word in ["one", "two", "three"]:
            reply = questions.request(Message("TopicRequest", word.encode()), timeout_ms=30_000)
            print(f"{word}: {reply.body.decode()}")
            assert reply.body == word.upper().encode()
