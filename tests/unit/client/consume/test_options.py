"""Options of consumers: what follows from them."""

from pathlib import Path
from typing import Any

import pytest

from goddard.client.consume.allocation import Averagely, AveragelyByCircle
from goddard.client.consume.lite import LitePullConsumer
from goddard.client.consume.offsets import LocalOffsets
from goddard.client.consume.options import LiteOptions, PushOptions
from goddard.client.consume.push import PushConsumer
from goddard.client.options import split_options
from goddard.client.values import ConsumeFrom, MessageModel
from goddard.errors import ConfigError


def test_own_options_are_taken_apart_from_those_of_the_session() -> None:
    own, common = split_options(LiteOptions, {"namespace": "space", "pull_batch_size": 5})
    assert own == LiteOptions(pull_batch_size=5)
    assert common == {"namespace": "space"}


def test_defaults_are_rocketmqs() -> None:
    push, lite = PushOptions(), LiteOptions()
    assert (push.pull_batch_size, lite.pull_batch_size) == (32, 10)
    assert (push.consume_threads, push.consume_timeout_ms) == (20, 900_000)
    assert (lite.pull_threshold_for_all, lite.auto_commit) == (10_000, True)
    for options in (push, lite):
        assert options.message_model is MessageModel.CLUSTERING
        assert options.consume_from is ConsumeFrom.LAST_OFFSET
        assert (options.pull_threshold_for_queue, options.max_span) == (1_000, 2_000)


def test_members_of_a_broadcasting_group_do_not_share_queues() -> None:
    assert isinstance(LiteOptions().strategy, Averagely)
    circle = AveragelyByCircle()
    assert PushOptions(allocation=circle).strategy is circle
    broadcast = PushOptions(message_model=MessageModel.BROADCASTING, allocation=circle)
    assert broadcast.is_broadcast
    assert broadcast.strategy is None


@pytest.mark.parametrize(
    ("times", "orderly", "limit"), [(-1, False, 16), (-1, True, -1), (3, False, 3), (0, True, 0)]
)
def test_how_often_messages_are_delivered_again(times: int, orderly: bool, limit: int) -> None:
    options = PushOptions(max_reconsume_times=times, orderly=orderly)
    assert options.reconsume_limit == limit


def test_a_group_that_starts_by_time_starts_half_an_hour_ago() -> None:
    assert PushOptions().start_timestamp_ms(10_000_000) == 8_200_000
    assert PushOptions().start_timestamp_ms(1_000) == 0
    assert PushOptions(consume_timestamp_ms=7).start_timestamp_ms(10_000_000) == 7


def test_hooks_are_copied() -> None:
    hooks: list[Any] = []
    options = PushOptions(consume_hooks=hooks)
    hooks.append(object())
    assert options.consume_hooks == ()


@pytest.mark.parametrize("folder", ["/tmp/offsets", Path("/tmp/offsets")])
def test_the_folder_of_offsets_is_a_str_or_a_path(folder: str | Path) -> None:
    for options in (PushOptions(offsets_folder=folder), LiteOptions(offsets_folder=folder)):
        offsets = LocalOffsets("id", "g", folder=options.offsets_folder)
        assert offsets.path == Path("/tmp/offsets/id/g/offsets.json")


class WithoutName:
    """A strategy that lacks ``name``."""

    def allocate(self, *_: object) -> list[object]:
        return []


@pytest.mark.parametrize(
    ("option", "given", "text"),
    [
        ("offsets_folder", 5, "offsets_folder is 5; it must be a str or Path"),
        ("offsets_folder", b"x", "offsets_folder is b'x'; it must be a str or Path"),
        (
            "allocation",
            AveragelyByCircle,
            r"allocation is the class AveragelyByCircle; give an instance: AveragelyByCircle\(\)",
        ),
        ("allocation", "AVG", r"allocation is 'AVG'; it must be .* as AveragelyByCircle\(\)"),
        ("allocation", "", r"allocation is ''; it must be .* as AveragelyByCircle\(\)"),
        ("allocation", WithoutName(), r"allocation is <.*; it must be .* `name` and `allocate`"),
    ],
)
@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_options_of_wrong_type(kind: Any, option: str, given: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        kind("g", name_servers="127.0.0.1:9876", **{option: given})


def test_auto_commit_must_be_a_bool() -> None:
    given: Any = "no"
    with pytest.raises(ConfigError, match="auto_commit is 'no'; it must be bool"):
        LitePullConsumer("g", name_servers="127.0.0.1:9876", auto_commit=given)
