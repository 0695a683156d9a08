"""Parsing and checking of options, without a server."""

import re

import pytest

from goddard.client.options import Credentials
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError
from goddard.spark.options import SINK_OPTIONS, SOURCE_OPTIONS, OffsetMode, parse_sink, parse_source

_NEEDED = {"nameServers": "127.0.0.1:9876", "subscribe": "TopicTest"}


def test_default_offsets_of_batches_and_streams() -> None:
    batch = parse_source(_NEEDED, is_streaming=False)
    stream = parse_source(_NEEDED, is_streaming=True)
    assert (batch.start.mode, batch.end.mode) == (OffsetMode.EARLIEST, OffsetMode.LATEST)
    assert stream.start.mode is OffsetMode.LATEST
    assert batch.topics == ("TopicTest",)


def test_option_names_are_case_insensitive() -> None:
    options = parse_source(
        {"NAMESERVERS": "a:1", "Subscribe": "A, B,A", "FAILONDATALOSS": "FALSE"},
        is_streaming=False,
    )
    assert options.topics == ("A", "B")
    assert not options.fails_on_data_loss


def test_all_kinds_of_start_offsets() -> None:
    options = parse_source(
        _NEEDED
        | {
            "startingOffsets": '{"TopicTest": {"b": {"0": -2, "1": 17}}}',
            "startingTimestamp": "1700000000000",
            "startingOffsetsByTimestamp": '{"TopicTest": 5}',
            "endingOffsets": '{"TopicTest": {"b": {"0": -1}}}',
        },
        is_streaming=False,
    )
    queue = MessageQueue("TopicTest", "b", 1)
    assert options.start.offsets[queue] == 17
    assert options.start.timestamp_ms == 1_700_000_000_000
    assert options.start.timestamps_ms == {"TopicTest": 5}


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("20ms", 20),
        ("3 s", 3_000),
        ("15m", 900_000),
        ("15min", 900_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("250", 250),
    ],
)
def test_duration_units(text: str, milliseconds: int) -> None:
    options = parse_source(_NEEDED | {"maxTriggerDelay": text}, is_streaming=True)
    assert options.max_trigger_delay_ms == milliseconds


def test_credentials_and_tls() -> None:
    options = parse_source(
        _NEEDED | {"accessKey": "a", "secretKey": "s", "securityToken": "t", "tls": "true"},
        is_streaming=False,
    )
    keywords = options.connection.keywords
    credentials, tls = keywords["credentials"], keywords["tls"]
    assert credentials == Credentials("a", "s", "t")
    assert tls is not None
    assert not tls.verify_peer


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nameServers": None}, "nameServers is missing"),
        ({"nameServers": "nowhere"}, "nowhere"),
        ({"subscribe": None}, "subscribePattern and assign; none of them is given"),
        ({"assign": '{"T": {"b": [0]}}'}, "and assign; subscribe, assign are given"),
        ({"subscribe": "A,,B"}, "subscribe names the topic ''"),
        ({"subscribe": "no topic"}, "subscribe names the topic"),
        ({"subscribe": None, "subscribePattern": "("}, "subscribePattern"),
        (
            {"startingOffset": "latest"},
            "unknown option startingOffset; did you mean startingOffsets",
        ),
        ({"startingoffset": "latest"}, "did you mean startingOffsets?"),
        ({"zzz": "1"}, "unknown option zzz; known: nameServers"),
        ({"kafka.bootstrap.servers": "h:9092"}, "did you mean nameServers?"),
        ({"kafka.group.id": "g"}, "did you mean group?"),
        ({"kafkaconsumer.polltimeoutms": "1"}, "did you mean requestTimeoutMs?"),
        ({"kafka.ssl.truststore.location": "x"}, "did you mean tls and tlsTrust?"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "did you mean accessKey and secretKey?"),
        ({"kafka.linger.ms": "5"}, "options are not passed on to a client; known: nameServers"),
        ({"path": "/x"}, "without a path"),
        ({"startingOffsets": "middle"}, "choose one of: earliest, latest, group"),
        ({"startingOffsets": "group"}, "the option group is missing"),
        ({"startingOffsets": "latest"}, "would have no rows"),
        ({"startingOffsets": '{"T": {"b": {"0": -1}}}'}, "would have no rows"),
        ({"endingOffsets": "earliest"}, "write latest"),
        ({"endingOffsets": '{"T": {"b": {"0": -2}}}'}, "would have no rows"),
        ({"startingOffsets": '{"T": 1}'}, "write it as"),
        ({"startingOffsets": "{}"}, "startingOffsets is '{}', which names no queue"),
        ({"endingOffsets": '{"T": {}}'}, "which names no queue"),
        ({"filter": "a || "}, "filter is 'a ||'; a tag is missing beside ||"),
        ({"filter": "a || || b"}, "a tag is missing"),
        ({"startingTimestamp": "yesterday"}, "a whole number"),
        ({"startingTimestamp": "-1"}, "a whole number"),
        ({"failOnDataLoss": "yes"}, "write true or false"),
        ({"minPartitions": "0"}, "from 1"),
        ({"maxOffsetsPerTrigger": "10"}, "for streams"),
        ({"accessKey": "a"}, "must be given together"),
        ({"group": "no group"}, "group is"),
        ({"group": ""}, "group is empty"),
        ({"filterType": "sql92"}, "without a filter"),
        ({"filter": "a >", "filterType": "sql92"}, "filter is not a valid SQL92 condition"),
        ({"filter": "a", "filterType": "regex"}, "choose one of"),
        ({"filter": "||"}, "filter is not a valid list of tags"),
        ({"namespace": "a b"}, "namespace is 'a b'"),
        ({"tlsTrust": "/nowhere/ca.pem"}, "/nowhere/ca.pem cannot be used"),
        ({"tlsTrust": "/nowhere/ca.pem", "tls": "false"}, "but tls is false"),
        ({"tlsKey": "/nowhere/key.pem"}, "tlsKey is given without tlsCertificate"),
        ({"tlsKeyPassword": "x"}, "tlsKeyPassword is given without tlsKey"),
        ({"securityToken": "t"}, "must be given together"),
        ({"startingTimestamp": "9", "endingTimestamp": "8"}, "is before startingTimestamp"),
        (
            {
                "startingOffsets": '{"T": {"b": {"0": 5}}}',
                "endingOffsets": '{"T": {"b": {"0": 4}}}',
            },
            "which is before its startingOffsets 5",
        ),
        ({"startingOffsetsByTimestamp": '{"T": "now"}'}, "write it as"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "choose one of: error, latest"),
        ({"minPartitions": "100001"}, "to 10000"),
        ({"maxRecordsPerPartition": "1e9"}, "a whole number"),
        ({"requestTimeoutMs": "0"}, "from 1"),
        ({"fetchOffset.numRetries": "-1"}, "from 0"),
        ({"fetchOffset.retryIntervalMs": "9999999"}, "to 600000"),
        ({"maxOutage": "9999999999d"}, "write it as 30s"),
        ({"requestsInFlight": "257"}, "to 256"),
        ({"messagesPerRequest": "0"}, "from 1"),
        ({"rowsPerBatch": "99999999999999999999"}, "a whole number"),
        ({"pushFilters": "1"}, "write true or false"),
        ({"subscribe": None, "assign": "{}"}, "assign names no queue"),
    ],
)
def test_wrong_options_of_a_batch(given: dict[str, str | None], words: str) -> None:
    options = {name: text for name, text in (_NEEDED | given).items() if text is not None}
    with pytest.raises(ConfigError, match=re.escape(words)):
        parse_source(options, is_streaming=False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"maxTriggerDelay": "soon"}, "write it as 30s"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"},
            "greater than maxOffsetsPerTrigger",
        ),
    ],
)
def test_wrong_options_of_a_stream(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_source(_NEEDED | given, is_streaming=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nameServers": None}, "nameServers is missing"),
        ({"topic": "no topic"}, "topic is 'no topic'"),
        ({"producerGroup": "no group"}, "producerGroup is 'no group'"),
        ({"batchBytes": "0"}, "from 1"),
        ({"batchBytes": "99999999"}, "to 4194304"),
        ({"requestsInFlight": "many"}, "a whole number"),
        ({"subscribe": "T"}, "unknown option subscribe"),
        ({"tls": "maybe"}, "write true or false"),
    ],
)
def test_wrong_options_of_a_write(given: dict[str, str | None], words: str) -> None:
    options = {"nameServers": "127.0.0.1:9876"} | given
    with pytest.raises(ConfigError, match=re.escape(words)):
        parse_sink({name: text for name, text in options.items() if text is not None})


def test_sink_ignores_the_checkpoint_location() -> None:
    options = parse_sink({"nameServers": "a:1", "checkpointLocation": "/x", "topic": "T"})
    assert (options.topic, options.producer_group) == ("T", "goddard-spark")


def test_every_option_has_a_description() -> None:
    assert all(len(text) > 5 for text in (SOURCE_OPTIONS | SINK_OPTIONS).values())


@pytest.mark.parametrize(("given_ms", "expected_ms"), [("1000", 1_000), ("20000", 3_000)])
def test_name_server_timeout_is_at_most_the_request_timeout(
    given_ms: str, expected_ms: int
) -> None:
    options = parse_source(_NEEDED | {"requestTimeoutMs": given_ms}, is_streaming=False)
    connection = options.connection
    assert connection.request_timeout_ms == int(given_ms)
    assert connection.keywords["api_timeout_ms"] == expected_ms
    assert connection.keywords["connect_timeout_ms"] == expected_ms
