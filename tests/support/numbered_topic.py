"""Topics with numbered messages, so that missing and duplicate messages are easy to see."""

from pathlib import Path
from typing import TYPE_CHECKING

from goddard import Message, Producer
from goddard.testing.site import Site

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class NumberedTopic:
    """A topic with numbered messages; the bodies are the numbers."""

    def __init__(self, site: Site, label: str, queues: int = 4, *, is_exact: bool = False) -> None:
        self.site = site
        self.name = site.create_topic(label, queues=queues, is_exact=is_exact)
        self.count = 0

    def fill(self, count: int) -> None:
        with Producer("fillers", name_servers=self.site.namesrv) as producer:
            queues = producer.publish_queues(self.name)
            for queue in queues:
                numbers = range(self.count, self.count + count)
                own = [n for n in numbers if n % len(queues) == queue.queue_id]
                messages = [
                    Message(
                        self.name,
                        b"%d" % number,
                        tags="even" if number % 2 == 0 else "odd",
                        keys=f"key{number}",
                        properties={"number": str(number)},
                    )
                    for number in own
                ]
                if messages:
                    producer.send_batch(messages, queue=queue)
        self.count += count

    def options(self, **more: str) -> dict[str, str]:
        return {"nameServers": self.site.namesrv, "subscribe": self.name, **more}


def numbers(frame: "DataFrame") -> list[int]:
    """The numbers in the bodies, ascending, with duplicates."""
    return sorted(int(row.body) for row in frame.select("body").collect())


def table_numbers(spark: "SparkSession", folder: Path) -> list[int]:
    return numbers(spark.read.parquet(str(folder)))
