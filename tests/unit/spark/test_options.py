"""Options are checked before anything is asked of a server."""

import re

import pytest

from goddard.client.values import MessageQueue
from goddard.errors import ConfigError
from goddard.spark.options import SOURCE, Where, parse_source

_NEEDED = {"nameServers": "127.0.0.1:9876", "subscribe": "TopicTest"}


def test_a_batch_reads_everything_and_a_stream_what_comes() -> None:
    batch = parse_source(_NEEDED, is_streaming=False)
    stream = parse_source(_NEEDED, is_streaming=True)
    assert (batch.start.where, batch.end.where) == (Where.EARLIEST, Where.LATEST)
    assert stream.start.where is Where.LATEST
    assert batch.topics == ("TopicTest",)


def test_case_does_not_matter() -> None:
    options = parse_source(
        {"NAMESERVERS": "a:1", "Subscribe": "A, B,A", "FAILONDATALOSS": "FALSE"},
        is_streaming=False,
    )
    assert options.topics == ("A", "B")
    assert not options.fails_on_data_loss


def test_all_ways_to_say_where() -> None:
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
    assert options.start.numbers[queue] == 17
    assert options.start.timestamp_ms == 1_700_000_000_000
    assert options.start.by_timestamp == {"TopicTest": 5}


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("20ms", 20), ("3 s", 3_000), ("15m", 900_000), ("2h", 7_200_000)]
)
def test_durations(text: str, milliseconds: int) -> None:
    options = parse_source(_NEEDED | {"maxTriggerDelay": text}, is_streaming=True)
    assert options.max_trigger_delay_ms == milliseconds


def test_credentials_and_tls() -> None:
    options = parse_source(
        _NEEDED | {"accessKey": "a", "secretKey": "s", "tlsTrust": "ca.pem"}, is_streaming=False
    )
    keywords = options.connecting.keywords
    credentials, tls = keywords["credentials"], keywords["tls"]
    assert credentials is not None
    assert credentials.access_key == "a"
    assert tls is not None
    assert tls.verify_peer


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nameServers": None}, "nameServers is missing"),
        ({"nameServers": "nowhere"}, "nowhere"),
        ({"subscribe": None}, "give one of subscribe, subscribePattern and assign; none"),
        ({"assign": '{"T": {"b": [0]}}'}, "2 of them"),
        ({"subscribe": "A,,B"}, "subscribe names the topic ''"),
        ({"subscribe": "no topic"}, "subscribe names the topic"),
        ({"subscribe": None, "subscribePattern": "("}, "subscribePattern"),
        (
            {"startingOffset": "latest"},
            "unknown option startingOffset; did you mean startingOffsets",
        ),
        ({"zzz": "1"}, "unknown option zzz; known: nameServers"),
        ({"path": "/x"}, "without one"),
        ({"startingOffsets": "middle"}, "choose one of: earliest, latest, group"),
        ({"startingOffsets": "group"}, "no group is given"),
        ({"startingOffsets": "latest"}, "has no rows"),
        ({"startingOffsets": '{"T": {"b": {"0": -1}}}'}, "would have no rows"),
        ({"endingOffsets": "earliest"}, "write latest"),
        ({"endingOffsets": '{"T": {"b": {"0": -2}}}'}, "would have no rows"),
        ({"startingOffsets": '{"T": 1}'}, "write it as"),
        ({"startingTimestamp": "yesterday"}, "a whole number"),
        ({"startingTimestamp": "-1"}, "a whole number"),
        ({"failOnDataLoss": "yes"}, "write true or false"),
        ({"minPartitions": "0"}, "from 1"),
        ({"maxOffsetsPerTrigger": "10"}, "for streams"),
        ({"accessKey": "a"}, "go together"),
        ({"group": "no group"}, "group is"),
        ({"group": ""}, "group is empty"),
        ({"filterType": "sql92"}, "without a filter"),
        ({"filter": "a >", "filterType": "sql92"}, "no SQL92 condition"),
        ({"filter": "a", "filterType": "regex"}, "choose one of"),
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
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "over maxOffsetsPerTrigger"),
    ],
)
def test_wrong_options_of_a_stream(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_source(_NEEDED | given, is_streaming=True)


def test_every_option_has_a_word_of_explanation() -> None:
    assert all(len(text) > 5 for text in SOURCE.values())
