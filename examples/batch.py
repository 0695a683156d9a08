"""Send many small messages: as one batch, asynchronously, or in batches made by the client.

NAMESRV_ADDR=127.0.0.1:9876 python examples/batch.py
"""

from concurrent.futures import wait

from goddard import AccumulatorOptions, Message, Producer


def messages(count: int) -> list[Message]:
    return [Message("TopicBatch", f"tick {number}".encode()) for number in range(count)]


with Producer("batch_producer") as producer:
    # One request, or several if the messages are too large for one; each message has a result.
    results = producer.send_batch(messages(1_000))
    print(f"{len(results)} sent as a list, to {len({result.queue for result in results})} queue(s)")

    # One request for each message, without waiting for the previous one.
    futures = [producer.send_async(message) for message in messages(1_000)]
    wait(futures, timeout=60)
    print(f"{sum(future.result().queue_offset >= 0 for future in futures)} sent asynchronously")

# The producer itself makes batches of the messages that are sent within a few milliseconds.
with Producer("batching_producer", accumulate=AccumulatorOptions()) as producer:
    futures = [producer.send_async(message) for message in messages(1_000)]
    wait(futures, timeout=60)
    print(f"{sum(future.result().queue_offset >= 0 for future in futures)} sent in batches")
