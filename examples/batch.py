"""Many small messages at once: as one batch, asynchronously, or gathered by the client.

NAMESRV_ADDR=127.0.0.1:9876 python examples/batch.py
"""

from concurrent.futures import wait

from goddard import AccumulatorOptions, Message, Producer


def messages(count: int) -> list[Message]:
    return [Message("TopicBatch", f"tick {number}".encode()) for number in range(count)]


with Producer("batch_producer") as producer:
    # One request, or a few if the messages are too big for one; a result for each message.
    results = producer.send_batch(messages(1_000))
    print(f"{len(results)} sent at once, to {len({result.queue for result in results})} queue(s)")

    # A request each, without waiting in between.
    futures = [producer.send_async(message) for message in messages(1_000)]
    wait(futures, timeout=60)
    print(f"{sum(future.result().queue_offset >= 0 for future in futures)} sent asynchronously")

# The producer itself gathers what is sent within a few milliseconds.
with Producer("gathering_producer", accumulate=AccumulatorOptions()) as producer:
    futures = [producer.send_async(message) for message in messages(1_000)]
    wait(futures, timeout=60)
    print(f"{sum(future.result().queue_offset >= 0 for future in futures)} sent in batches")
