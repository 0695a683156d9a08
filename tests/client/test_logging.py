"""The handler for the standard ``logging``, with each kind of broker."""

import asyncio
import logging
import logging.config
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from goddard.errors import ConfigError
from goddard.logging import RocketMQHandler
from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from tests.support.topic_reader import TopicReader

NOWHERE = "127.0.0.1:1"
TIMEOUT_SECONDS = 60
_numbers = count(1)


@contextmanager
def logger_with(handler: logging.Handler) -> Iterator[logging.Logger]:
    """A logger of its own that has this handler only."""
    logger = logging.getLogger(f"shop-{next(_numbers)}")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        handler.close()


async def test_records_become_messages(site: Site) -> None:
    topic = site.create_topic("logs", queues=1)
    handler = RocketMQHandler(topic, name_servers=site.namesrv)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    with logger_with(handler) as logger:
        logger.info("order %d paid", 7)
        logger.error("card refused")
        handler.flush()
        assert (handler.sent, handler.waiting, handler.dropped) == (2, 0, 0)
    async with TopicReader(site.namesrv, topic) as reader:
        first, second = await reader.until(2)
    assert (first.body, first.tags) == (b"INFO order 7 paid", "INFO")
    assert (second.body, second.tags) == (b"ERROR card refused", "ERROR")
    assert first.properties["logger"] == logger.name
    assert (first.properties["level"], second.properties["level"]) == ("20", "40")


async def test_dict_config(site: Site) -> None:
    topic = site.create_topic("logs", queues=1)
    name = f"shop-{next(_numbers)}"
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {
                "topic": {
                    "class": "goddard.logging.RocketMQHandler",
                    "topic": topic,
                    "name_servers": site.namesrv,
                    "tag": "shop",
                    "level": "WARNING",
                }
            },
            "loggers": {name: {"handlers": ["topic"], "propagate": False}},
        }
    )
    logger = logging.getLogger(name)
    try:
        logger.info("not sent")
        logger.warning("sent")
    finally:
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
    async with TopicReader(site.namesrv, topic) as reader:
        (message,) = await reader.until(1)
    assert (message.body, message.tags) == (b"sent", "shop")


async def test_many_records_arrive_once_and_in_order(site: Site) -> None:
    topic = site.create_topic("logs", queues=1)
    handler = RocketMQHandler(topic, name_servers=site.namesrv)
    with logger_with(handler) as logger:
        for number in range(2_000):
            logger.info("%d", number)
    assert (handler.sent, handler.dropped) == (2_000, 0)
    async with TopicReader(site.namesrv, topic) as reader:
        messages = await reader.until(2_000)
    assert [int(message.body) for message in messages] == list(range(2_000))


def test_without_a_name_server_logging_does_not_wait_and_drops_are_counted() -> None:
    handler = RocketMQHandler("logs", name_servers=NOWHERE, capacity=10, close_timeout_ms=100)
    with logger_with(handler) as logger:
        for number in range(1_000):
            logger.info("%d", number)
        # What waits is bounded by the capacity and the batch that is being sent.
        assert handler.waiting <= 20
        assert handler.dropped + handler.waiting == 1_000
    assert (handler.sent, handler.dropped, handler.waiting) == (0, 1_000, 0)
    logger.addHandler(handler)
    logger.info("after the close")
    assert handler.dropped == 1_001


async def test_dropped_records_are_reported_before_the_next_ones(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        site = Site(cluster.start_name_server())
        handler = RocketMQHandler(
            "logs", name_servers=site.namesrv, capacity=10, close_timeout_ms=30_000
        )
        with logger_with(handler) as logger:
            for number in range(30):
                logger.info("%d", number)
            dropped = handler.dropped
            assert 10 <= dropped <= 20
            site.start_goddard_broker(cluster)
            handler.flush()
            assert (handler.sent, handler.dropped) == (30 - dropped, dropped)
        async with TopicReader(site.namesrv, "logs") as reader:
            messages = await reader.until(30 - dropped + 1)
    (report,) = (message for message in messages if not message.body.isdigit())
    assert report.body == f"{dropped} log records were dropped".encode()
    assert report.tags == "WARNING"


def test_own_loggers_are_not_sent() -> None:
    handler = RocketMQHandler("logs", name_servers=NOWHERE, close_timeout_ms=0)
    for name in ("goddard.client", "goddard", "asyncio"):
        handler.handle(logging.LogRecord(name, logging.ERROR, __file__, 1, "text", None, None))
    assert (handler.waiting, handler.dropped) == (0, 0)
    handler.close()


def test_a_filter_of_the_handler_is_obeyed() -> None:
    handler = RocketMQHandler("logs", name_servers=NOWHERE, close_timeout_ms=0)
    handler.addFilter(lambda record: "secret" not in record.getMessage())
    with logger_with(handler) as logger:
        logger.info("a secret")
        assert handler.waiting == 0


def test_a_record_that_cannot_be_formatted_is_no_error_of_the_caller(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = RocketMQHandler("logs", name_servers=NOWHERE, close_timeout_ms=0)
    with logger_with(handler) as logger:
        logger.info("%d", "text")
        assert handler.waiting == 0
    assert "--- Logging error ---" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"topic": "a b"}, "illegal characters"),
        ({"capacity": 0}, "capacity is 0; it must be 1 to"),
        ({"close_timeout_ms": -1}, "close_timeout_ms is -1"),
        ({"name_servers": "localhost"}, "localhost"),
        ({"send_timeout_ms": "soon"}, "send_timeout_ms is 'soon'"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        RocketMQHandler(**{"topic": "logs", "name_servers": NOWHERE, **options})


PROGRAM = """
import logging, os, sys
from goddard.logging import RocketMQHandler
handler = RocketMQHandler(sys.argv[2], name_servers=sys.argv[1], close_timeout_ms=30_000)
logging.getLogger().addHandler(handler)
logging.warning("parent")
handler.flush()
child = os.fork()
logging.warning("child" if child == 0 else "parent again")
if child:
    os.waitpid(child, 0)
"""


async def test_records_of_the_end_and_of_forked_children_are_sent(site: Site) -> None:
    """The program neither flushes nor closes before it ends."""
    topic = site.create_topic("logs", queues=1)
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, site.namesrv, topic
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert await program.wait() == 0
    async with TopicReader(site.namesrv, topic) as reader:
        messages = await reader.until(3)
    assert sorted(message.body for message in messages) == [b"child", b"parent", b"parent again"]


def test_a_close_does_not_wait_longer_than_allowed() -> None:
    handler = RocketMQHandler("logs", name_servers=NOWHERE, close_timeout_ms=200)
    with logger_with(handler) as logger:
        logger.info("text")
        began = time.monotonic()
        handler.close()
        # Much less than a minute, for which records are tried again while the handler is open.
        assert time.monotonic() - began < TIMEOUT_SECONDS / 2
    assert handler.dropped == 1
