"""The README's Spark program works as it stands there, but for address, topic and endless wait."""

import re
import runpy
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.numbered import NumberedTopic

from goddard.testing.process import wait_until
from goddard.testing.site import Site

README = Path(__file__).parents[2] / "README.md"


def test_the_program_of_the_readme(spark: SparkSession, ours: Site, tmp_path: Path) -> None:
    topic = NumberedTopic(ours, "orders")
    *_, program = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    program = program.replace("127.0.0.1:9876", ours.namesrv).replace('"orders"', f'"{topic.name}"')
    assert ".awaitTermination()" in program
    program = program.replace(".awaitTermination()", "")
    before = {query.id for query in spark.streams.active}
    (tmp_path / "program.py").write_text(program)
    runpy.run_path(str(tmp_path / "program.py"))
    (query,) = [query for query in spark.streams.active if query.id not in before]
    try:
        wait_until(lambda: query.lastProgress is not None, 60, "the first look")
        topic.fill(8)
        wait_until(
            lambda: sum(progress.numInputRows for progress in query.recentProgress) == 8,
            60,
            "the messages",
        )
    finally:
        query.stop()
