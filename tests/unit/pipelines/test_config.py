"""Job files: what is accepted, and the errors for everything else."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from goddard.errors import ConfigError
from goddard.pipelines.config import load_job, parse_job, shown
from goddard.pipelines.job import Job, Secret
from goddard.pipelines.schemas import avro_ddl, body_schema, field_names
from goddard.pipelines.validate import notes

WHOLE = """
name = "orders"
description = "all there is"
[source]
nameServers = "127.0.0.1:9876"
subscribe = "orders"
startingOffsets = "earliest"
group = "orders-pipeline"
maxOffsetsPerTrigger = 1000
[parse]
format = "json"
schema = "id long, amount double, city string, at timestamp"
[[expect]]
name = "positive amount"
condition = "amount > 0"
[[expect]]
condition = "city IS NOT NULL"
onViolation = "drop"
[deduplicate]
keys = ["id"]
watermark = "10 minutes"
time = "at"
[[transform]]
sql = "SELECT id, amount * 2 AS amount, at, city FROM input"
[[transform]]
python = "my_module:my_function"
[aggregate]
time = "at"
window = "1 minute"
watermark = "5 minutes"
by = ["city"]
values = { orders = "count(*)", total = "sum(amount)" }
[sink]
format = "delta"
path = "tables/orders"
partitionBy = ["city"]
compact = true
[quarantine]
path = "tables/orders_quarantine"
[run]
trigger = "10 seconds"
checkpoint = "checkpoints/orders"
settings = { "spark.sql.shuffle.partitions" = 4 }
"""

SMALL = """
name = "small"
[source]
nameServers = "127.0.0.1:9876"
subscribe = "t"
[sink]
path = "tables/t"
"""


AGGREGATE = {"time": "at", "window": "1 minute", "values": {"n": "count(*)"}}
GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "pipelines.md"


def job(text: str = SMALL, **tables: Any) -> Job:
    return parse_job(tomllib.loads(text) | tables)


def refused(words: str, text: str = SMALL, **tables: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        job(text, **tables)
    assert words in str(caught.value)


def test_a_job_with_everything() -> None:
    whole = job(WHOLE)
    assert whole.source.is_stream
    assert whole.source.options["maxOffsetsPerTrigger"] == "1000"
    assert whole.parse is not None
    assert whole.parse_action == "quarantine"
    assert [each.label for each in whole.expectations] == ["positive amount", "city IS NOT NULL"]
    assert [each.on_violation for each in whole.expectations] == ["quarantine", "drop"]
    assert whole.deduplicate is not None
    assert whole.deduplicate.watermark == "10 minutes"
    assert [bool(each.sql) for each in whole.transforms] == [True, False]
    assert whole.aggregate is not None
    assert whole.aggregate.by == ("city",)
    assert whole.sink.is_exactly_once
    assert whole.sink.compact
    assert whole.quarantine is not None
    assert whole.quarantine.format == "delta"
    assert whole.run.settings == {"spark.sql.shuffle.partitions": "4"}
    assert whole.is_stateful
    assert whole.has_rules


def test_a_small_job_has_sensible_defaults() -> None:
    small = job()
    assert small.run.trigger == "availableNow"
    assert small.run.checkpoint == "checkpoints/small"
    assert small.sink.format == "delta"
    assert not small.is_stateful
    assert not small.has_rules


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"snik": {}}, "snik is unknown; did you mean sink?"),
        ({"sink": {"path": "x", "partitonBy": []}}, "did you mean partitionBy?"),
        ({"sink": {"format": "parquett", "path": "x"}}, "did you mean parquet?"),
        ({"sink": {"format": "parquet"}}, "[sink] path is missing"),
        ({"sink": {"path": ""}}, "[sink] path is '': expected `str` of length >= 1"),
        ({"sink": {"path": 5}}, "[sink] path is 5: expected `str"),
        (
            {"sink": {"path": "x", "partitionBy": "day"}},
            "[sink] partitionBy is 'day': expected `array`",
        ),
        ({"sink": {"path": "x", "partitionBy": ["a", "a"]}}, "partitionBy has an entry twice"),
        ({"sink": {"path": "x", "compact": "yes"}}, "[sink] compact is 'yes': expected `bool`"),
        ({"sink": ["x"]}, "[sink] is list; write a table"),
        ({"sink": {"format": "iceberg", "table": "orders"}}, "write namespace.table"),
        ({"sink": {"format": "iceberg", "table": "a.b"}}, "[sink] catalog is missing"),
        ({"sink": {"format": "console", "rows": 0}}, "[sink] rows is 0: expected `int` >= 1"),
        ({"sink": {"format": "rocketmq", "topik": "x"}}, "did you mean topic?"),
        ({"source": {"nameServers": "h:1"}}, "[source] give exactly one of subscribe"),
        ({"source": {"nameServers": "h:1", "subscrib": "t"}}, "did you mean subscribe?"),
        ({"source": {"nameServers": "h:1", "subscribe": ["t"]}}, "[source] subscribe is a list"),
        (
            {"source": {"nameServers": "h:1", "subscribe": "t", "endingOffsets": "latest"}},
            "a stream has no end",
        ),
        ({"source": {"format": "rocketmq-log", "path": "/nowhere"}}, "is not a directory"),
        ({"parse": {"format": "jsn"}}, "did you mean json?"),
        ({"parse": {"format": "json"}}, "[parse] give schema"),
        ({"parse": {"schema": "id"}}, "write it as 'name type'"),
        ({"parse": {"schema": "topic string"}}, "a column that messages have already"),
        (
            {"parse": {"schema": "infer", "format": "csv"}},
            "schema = 'infer' is for json, not for csv",
        ),
        ({"parse": {"format": "avro"}}, "[parse] give schemaFile"),
        ({"parse": {"schema": "a int", "into": "body"}}, "'body' is not the name of a new column"),
        ({"expect": {"condition": "a"}}, "expect is {'condition': 'a'}: expected `array`"),
        ({"expect": [{"name": "x"}]}, "condition is missing"),
        ({"expect": [{"condition": "a"}]}, "there is no table [quarantine]"),
        (
            {"expect": [{"condition": "a", "onViolation": "drop"}, {"condition": "a"}]},
            "[[expect]] name is 'a' twice",
        ),
        ({"quarantine": {"path": "q"}}, "nothing puts rows into it"),
        (
            {"quarantine": {"format": "console"}, "expect": [{"condition": "a"}]},
            "write delta or iceberg",
        ),
        (
            {"quarantine": {"path": "tables/t"}, "expect": [{"condition": "a"}]},
            "the same place",
        ),
        (
            {"quarantine": {"path": "./tables//t/"}, "expect": [{"condition": "a"}]},
            "the same place",
        ),
        (
            {"quarantine": {"path": "tables/t/bad"}, "expect": [{"condition": "a"}]},
            "tables/t/bad is inside of tables/t",
        ),
        ({"deduplicate": {"watermark": "10m"}}, "write it as '30 seconds'"),
        ({"deduplicate": {"watermark": "0 seconds"}}, "write it as '30 seconds'"),
        ({"deduplicate": {"watermark": "999999999 weeks"}}, "the longest is 36500 days"),
        ({"transform": [{"sql": "SELECT 1"}]}, "does not read from input"),
        ({"transform": [{}]}, "either sql or python"),
        ({"transform": [{"python": "f"}]}, "module:function"),
        ({"aggregate": {"values": {"n": "count(*)"}}}, "window is missing"),
        ({"aggregate": {"window": "1 minute"}}, "values is missing"),
        (
            {"aggregate": {"window": "1 minute", "slide": "1 hour", "values": {"n": "1"}}},
            "longer than the window",
        ),
        (
            {"aggregate": {"window": "1 minute", "values": {"windowEnd": "1"}}},
            "the name of another column",
        ),
        (
            {
                "aggregate": {"window": "1 minute", "values": {"n": "1"}, "time": "at"},
                "deduplicate": {},
            },
            "a query has one watermark",
        ),
        (
            {
                "aggregate": {"window": "1 minute", "values": {"n": "1"}, "outputMode": "complete"},
                "sink": {"format": "parquet", "path": "x"},
            },
            "which replaces rows; parquet cannot, delta and console can",
        ),
        (
            {
                "aggregate": {"window": "1 minute", "values": {"n": "1"}, "outputMode": "update"},
                "sink": {"format": "iceberg", "table": "a.b", "catalog": {"type": "sql"}},
            },
            "iceberg cannot, delta and console can",
        ),
        (
            {"sink": {"format": "parquet", "path": "x", "compact": True}},
            "compact is for Delta tables",
        ),
        ({"sink": {"path": "x", "mode": "upsrt"}}, "did you mean upsert?"),
        ({"sink": {"path": "x", "mode": "upsert"}}, "mode 'upsert' needs keys and sequence"),
        ({"sink": {"path": "x", "keys": ["a"]}}, "keys and sequence need mode"),
        (
            {"sink": {"path": "x", "mode": "scd2", "keys": ["a"], "sequence": "queueOffset"}},
            "[sink] keys names a",
        ),
        ({"sink": {"format": "parquet", "path": "x", "mode": "upsert"}}, "upsert is for Delta"),
        ({"expect": [{"condition": "a", "otherwise": "drop"}]}, "it is now onViolation"),
        (
            {"deduplicate": {"within": "1 hour"}},
            "[deduplicate] within is unknown; it is now watermark",
        ),
        ({"aggregate": AGGREGATE | {"late": "1 hour"}}, "late is unknown; it is now watermark"),
        (
            {"aggregate": AGGREGATE | {"emit": "all"}},
            "outputMode: closed is append, changed is update",
        ),
        ({"aggregate": AGGREGATE | {"outputMode": "apend"}}, "is 'apend'; did you mean append?"),
        ({"parse": {"schema": "a int", "onViolation": "dorp"}}, "did you mean drop?"),
        ({"parse": {"schema": "a string", "format": "csv", "rescue": "r"}}, "rescue is for json"),
        (
            {
                "aggregate": {"window": "1 minute", "values": {"n": "1"}, "outputMode": "update"},
                "sink": {"path": "x", "partitionBy": ["n"]},
            },
            "partitionBy names n, which the rows do not have; known: windowStart, windowEnd",
        ),
        (
            {
                "aggregate": {"window": "1 minute", "values": {"n": "1"}, "outputMode": "update"},
                "deduplicate": {},
            },
            "outputMode is update; with [deduplicate] it must be append",
        ),
        (
            {
                "aggregate": {
                    "window": "1 minute",
                    "values": {"n": "1"},
                    "outputMode": "complete",
                    "watermark": "1 hour",
                },
            },
            "outputMode 'complete' keeps every window and has no watermark",
        ),
        ({"run": {"trigger": "often"}}, "write it as availableNow or '30 seconds'"),
        ({"run": {"trigger": "999999999 days"}}, "the longest is 36500 days"),
        ({"run": []}, "[run] Expected `object`, got `array`"),
        ({"run": {"settings": {"spark": {"x": 1}}}}, "[run] settings"),
        ({"run": {"after": "f"}}, "module:function"),
        ({"name": "a/b"}, "name is 'a/b': expected `str` matching regex"),
    ],
)
def test_errors_name_what_is_wrong(tables: dict[str, Any], words: str) -> None:
    refused(words, **tables)


def test_errors_name_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="name is missing"):
        parse_job({})
    with pytest.raises(ConfigError, match="sink is missing"):
        parse_job({"name": "x", "source": {}})


def test_late_rows_can_be_refused() -> None:
    windows = {"window": "1 minute", "watermark": "0 seconds", "values": {"n": "count(*)"}}
    aggregate = job(aggregate=windows).aggregate
    assert aggregate is not None
    assert aggregate.delay == "0 seconds"


@pytest.mark.parametrize(
    ("mode", "delay"), [("append", "1 minute"), ("update", "1 hour"), ("complete", None)]
)
def test_default_time_that_windows_wait_for_late_rows(mode: str, delay: str | None) -> None:
    windows = {
        "window": "1 minute",
        "values": {"n": "count(*)"},
        "by": ["topic"],
        "outputMode": mode,
    }
    aggregate = job(aggregate=windows).aggregate
    assert aggregate is not None
    assert (aggregate.output_mode, aggregate.delay) == (mode, delay)
    assert aggregate.keys == ("windowStart", "windowEnd", "topic")


def test_notes_about_surprising_settings() -> None:
    windows = {"window": "1 minute", "values": {"n": "count(*)"}}
    limited = {"nameServers": "h:1", "subscribe": "t", "maxOffsetsPerTrigger": 5}
    assert notes(job()) == notes(job(aggregate=windows)) == notes(job(source=limited)) == []
    (all_windows,) = notes(job(aggregate=windows | {"outputMode": "complete"}, source=limited))
    assert "keeps every window" in all_windows
    (behind,) = notes(job(aggregate=windows, source=limited))
    assert "rows that are 1 minute behind the newest of all queues are dropped" in behind
    (behind,) = notes(job(aggregate=windows, deduplicate={"watermark": "2 hours"}, source=limited))
    assert "rows that are 2 hours behind" in behind


def test_bad_rows_fail_the_job_when_there_is_no_quarantine() -> None:
    assert job(parse={"schema": "a int"}).parse_action == "fail"


def test_text_is_one_column() -> None:
    parse = job(parse={"format": "text", "into": "line"}).parse
    assert parse is not None
    assert body_schema(parse, Path()) == "`line` string"


def test_a_sink_topic_is_in_the_sources_cluster_by_default() -> None:
    same = job(sink={"format": "rocketmq", "topic": "out"})
    assert same.sink.options == {"nameServers": "127.0.0.1:9876", "topic": "out"}
    assert not same.sink.is_exactly_once
    other = job(sink={"format": "rocketmq", "topic": "out", "nameServers": "h:1"})
    assert other.sink.options["nameServers"] == "h:1"


def test_any_spark_format_can_be_a_sink() -> None:
    sink = job(sink={"format": "jdbc", "url": "jdbc:x", "batchsize": 10, "truncate": True}).sink
    assert sink.options == {"url": "jdbc:x", "batchsize": "10", "truncate": "true"}


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"deduplicate": {"keys": ["idd"]}}, "[deduplicate] keys names idd, which the rows do not"),
        ({"deduplicate": {"keys": ["idd"]}}, "did you mean id?"),
        ({"deduplicate": {"time": "att"}}, "[deduplicate] time names att"),
        ({"deduplicate": {"keys": ["order.id"]}}, "names order.id"),
        ({"aggregate": AGGREGATE | {"time": "when"}}, "[aggregate] time names when"),
        ({"aggregate": AGGREGATE | {"by": ["town"]}}, "[aggregate] by names town"),
        (
            {"aggregate": AGGREGATE, "sink": {"path": "t", "partitionBy": ["city"]}},
            "[sink] partitionBy names city, which the rows do not have; known: windowStart",
        ),
        ({"sink": {"path": "t", "partitionBy": ["day"]}}, "[sink] partitionBy names day"),
    ],
)
def test_unknown_columns_are_refused(tables: dict[str, Any], words: str) -> None:
    refused(words, parse={"schema": "id long, `at` timestamp"}, **tables)


@pytest.mark.parametrize(
    "tables",
    [
        {"deduplicate": {"keys": ["ID", "msgid"], "time": "at"}},
        {"deduplicate": {"keys": ["order.id"]}, "parse": {"schema": "id long", "into": "order"}},
        {"deduplicate": {"keys": ["anything"]}, "parse": {"schema": "infer"}},
        {"sink": {"path": "t", "partitionBy": ["windowStart"]}, "aggregate": AGGREGATE},
        # Only Spark knows the columns that a transform returns.
        {
            "transform": [{"sql": "SELECT 1 AS one FROM input"}],
            "sink": {"path": "t", "partitionBy": ["one"]},
        },
    ],
)
def test_known_and_possible_columns_are_accepted(tables: dict[str, Any]) -> None:
    assert job(**({"parse": {"schema": "id long, `at` timestamp"}} | tables)).name == "small"


def test_the_tables_of_the_guide_form_one_job() -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    whole = tomllib.loads("\n".join(blocks))
    whole["sink"].pop("partitionBy")
    made = parse_job(whole)
    assert made.deduplicate is not None
    assert made.aggregate is not None


def test_values_can_be_overridden() -> None:
    changes = {
        "sink.path": "elsewhere",
        "sink.compact": "false",
        "sink.partitionBy": "windowStart, city",
        "source.maxOffsetsPerTrigger": "5",
        "source.fetchOffset.numRetries": "9",
        "name": "renamed",
    }
    changed = parse_job(tomllib.loads(WHOLE), changes=changes)
    assert changed.name == "renamed"
    assert changed.sink.path == "elsewhere"
    assert not changed.sink.compact
    assert changed.sink.partition_by == ("windowStart", "city")
    assert changed.source.options["maxOffsetsPerTrigger"] == "5"
    assert changed.source.options["fetchOffset.numRetries"] == "9"
    # Settings that the file does not have are typed, too.
    added = {
        "sink.compact": "true",
        "sink.partitionBy": "day",
        "parse.sample": "5",
        "parse.schema": "infer",
        "parse.onViolation": "drop",
        "run.settings.spark.sql.shuffle.partitions": "8",
        "deduplicate.keys": "id,msgId",
    }
    changed = parse_job(tomllib.loads(SMALL), changes=added)
    assert changed.sink.compact
    assert changed.sink.partition_by == ("day",)
    assert changed.parse is not None
    assert changed.parse.sample == 5
    assert changed.run.settings == {"spark.sql.shuffle.partitions": "8"}
    assert changed.deduplicate is not None
    assert changed.deduplicate.keys == ("id", "msgId")
    with pytest.raises(ConfigError, match="is no table"):
        parse_job(tomllib.loads(WHOLE), changes={"name.x": "1"})
    with pytest.raises(ConfigError, match="did you mean path"):
        parse_job(tomllib.loads(SMALL), changes={"sink.pth": "1"})


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_job(tmp_path / "none.toml")
    path = tmp_path / "job.toml"
    path.write_text("name = ")
    with pytest.raises(ConfigError, match=r"job\.toml is no TOML"):
        load_job(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_job(path)
    path.write_text(SMALL + "\n[run]\ntriger = 'x'")
    with pytest.raises(ConfigError, match=r"job\.toml: \[run\] triger is unknown"):
        load_job(path)
    path.write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="is no job file"):
        load_job(path)
    path.write_text(WHOLE)
    assert load_job(path).folder == tmp_path


def test_avro_schemas_come_from_files_beside_the_job(tmp_path: Path) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "city", "type": ["null", "string"]}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    path = tmp_path / "job.toml"
    path.write_text(SMALL + "[parse]\nformat = 'avro'\nschemaFile = 'order.avsc'\n")
    parse = load_job(path).parse
    assert parse is not None
    assert body_schema(parse, tmp_path) == "`id` bigint, `city` string"
    (tmp_path / "order.avsc").write_text("{")
    with pytest.raises(ConfigError, match="has no JSON"):
        load_job(path)


def test_json_schemas_may_be_in_files(tmp_path: Path) -> None:
    (tmp_path / "order.ddl").write_text("id long,\n  city string\n")
    path = tmp_path / "job.toml"
    path.write_text(SMALL + "[parse]\nschemaFile = 'order.ddl'\n")
    parse = load_job(path).parse
    assert parse is not None
    assert body_schema(parse, tmp_path) == "id long,\n  city string"


def test_fields_of_a_schema_are_found_without_spark() -> None:
    ddl = "id long, `a, b` decimal(10, 2) NOT NULL, s: struct<x: int, y: array<map<int, long>>>"
    assert field_names(ddl) == ("id", "a, b", "s")
    with pytest.raises(ConfigError, match="write it as 'name type'"):
        field_names("id long,")


def test_avro_schemas_become_schemas_of_spark() -> None:
    inner = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "double"}]}
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    fields: list[dict[str, Any]] = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "points", "type": {"type": "array", "items": inner}},
        {"name": "last", "type": "P"},
        {"name": "prices", "type": {"type": "map", "values": decimal}},
    ]
    assert avro_ddl({"type": "record", "name": "R", "fields": fields}) == (
        "`id` bigint, `at` timestamp, `points` array<struct<`x`: double>>, "
        "`last` struct<`x`: double>, `prices` map<string, decimal(9, 2)>"
    )
    for wrong, words in {
        "string": "no record",
        "nothing": "no record",
    }.items():
        with pytest.raises(ConfigError, match=words):
            avro_ddl(wrong)
    union = {"name": "u", "type": ["int", "string"]}
    with pytest.raises(ConfigError, match="no counterpart"):
        avro_ddl({"type": "record", "name": "R", "fields": [union]})
    itself: Any = {"name": "T", "type": "record", "fields": []}
    itself["fields"].append({"name": "next", "type": itself})
    with pytest.raises(ConfigError, match="nested deeper"):
        avro_ddl(itself)


def test_secrets_are_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_SECRET", "hush")
    (tmp_path / "password").write_text("quiet\n")
    source = {
        "nameServers": "h:1",
        "subscribe": "t",
        "accessKey": "a",
        "secretKey": "${ORDERS_SECRET}",
    }
    url = f"jdbc:x?password=${{file:{tmp_path}/password}}"
    made = job(source=source, sink={"format": "jdbc", "url": url})
    assert made.source.options["secretKey"] == "hush"
    assert made.sink.options["url"] == "jdbc:x?password=quiet"
    assert isinstance(made.sink.options["url"], Secret)
    assert shown(made.sink.options) == f"url={url}"
    assert "hush" not in shown(made.source.options)
    assert made.redacted("cannot open jdbc:x?password=quiet") == f"cannot open {url}"
    wrong = {"format": "jdbc", "url": "${NOWHERE}/x"}
    refused("[sink] url: the environment variable NOWHERE is not set", sink=wrong)
    refused("cannot be read", sink={"format": "jdbc", "url": "${file:/nowhere}"})
