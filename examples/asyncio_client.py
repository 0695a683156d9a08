"""Use the clients with asyncio: send a thousand messages concurrently, then read them.

NAMESRV_ADDR=127.0.0.1:9876 python examples/asyncio_client.py
"""

import asyncio

from goddard import ConsumeFrom, Message
from goddard.aio import LitePullConsumer, Producer

MESSAGES = 1_000


async def main() -> None:
    async with Producer("asyncio_producer") as producer:
        # One future for each message; all sends run concurrently.
        results = await asyncio.gather(
            *(
                producer.send_soon(Message("TopicAsyncio", f"hello {number}".encode()))
                for number in range(MESSAGES)
            )
        )
        print(f"{len(results)} sent to {len({result.queue for result in results})} queues")

    consumer = LitePullConsumer("asyncio_consumer", consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe("TopicAsyncio")
    bodies: set[bytes] = set()
    async with consumer, asyncio.timeout(60):
        async for message in consumer:
            bodies.add(message.body)
            if len(bodies) == MESSAGES:
                break
    print(f"{len(bodies)} received")


asyncio.run(main())
