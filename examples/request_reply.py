"""Send a request as a message and wait for the reply.

NAMESRV_ADDR=127.0.0.1:9876 python examples/request_reply.py
"""

from goddard import ConsumeContext, Message, Producer, PushConsumer, ReceivedMessage, create_reply

with Producer("answering_producer") as answers, Producer("asking_producer") as questions:
    # The topic has to exist before its queues can be assigned to the consumer.
    questions.send(Message("TopicRequest", b"hello"))

    def answer(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
        """Consume a request and send the reply, which only the requesting process receives."""
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
