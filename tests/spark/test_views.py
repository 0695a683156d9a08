"""Temporary views of topics."""

import re

import pytest
from pyspark.sql import SparkSession

from goddard.errors import ConfigError
from goddard.spark import create_views
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic, numbers


def test_topics_are_tables_of_sql(spark: SparkSession, site: Site) -> None:
    plain = NumberedTopic(site, "viewed_orders", is_exact=True)
    odd = NumberedTopic(site, "viewed-2")
    plain.fill(10)
    odd.fill(5)
    names = [plain.name, odd.name]
    views = create_views(spark, site.namesrv, names)
    assert views == {"viewed_orders": plain.name, f"`{odd.name}`": odd.name}
    sql = "SELECT count(*) AS rows, max(tags) AS tag FROM viewed_orders WHERE queueId < 4"
    assert spark.sql(sql).collect() == [(10, "odd")]
    # A view reads the messages of now.
    odd.fill(5)
    assert numbers(spark.sql(f"SELECT body FROM `{odd.name}`")) == list(range(10))
    # Again, by a pattern, and only the messages since a time.
    views = create_views(
        spark,
        site.namesrv,
        "viewed_.*",
        startingTimestamp=str(2**40 * 2),
        startingOffsetsByTimestampStrategy="latest",
    )
    assert views == {"viewed_orders": plain.name}
    assert numbers(spark.table("viewed_orders")) == []
    compiled = re.compile("viewed_o.*s")
    assert create_views(spark, site.namesrv, compiled) == {"viewed_orders": plain.name}


def test_topics_that_differ_in_case_are_refused(spark: SparkSession, ours: Site) -> None:
    for name in ("Cased", "cased"):
        NumberedTopic(ours, name, is_exact=True)
    with pytest.raises(ConfigError, match="Cased and cased would have the same view"):
        create_views(spark, ours.namesrv)
    assert create_views(spark, ours.namesrv, ["cased"]) == {"cased": "cased"}
