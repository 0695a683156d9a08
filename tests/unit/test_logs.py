"""The log file of a daemon."""

import logging
import threading
from pathlib import Path

import pytest

from goddard.errors import ConfigError
from goddard.logs import logback_level, logging_to

_logger = logging.getLogger("goddard.test")


def test_all_records_are_in_the_file_when_the_block_ends(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "namesrv.log"
    with logging_to(file):
        _logger.info("%s service started", "X")
        _logger.debug("not at this level")
    text = file.read_text()
    assert text.endswith(" INFO MainThread - X service started\n")
    assert "not at this level" not in text


def test_a_very_long_text_is_truncated(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.log"
    with logging_to(file):
        _logger.info("a peer sent %s", "x" * 1_000_000)
        _logger.info("the next")
    text = file.read_text()
    assert len(text) < 20_000
    assert "xxx... (1000012 characters)\n" in text
    assert text.endswith(" - the next\n")


def test_a_traceback_is_written(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.log"
    with logging_to(file):
        try:
            raise ValueError("the reason")
        except ValueError:
            _logger.exception("it failed")
    assert "ValueError: the reason" in file.read_text()


def test_logging_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is blocked: the queue fills, records are dropped and counted, no call blocks."""
    released = threading.Event()
    original = logging.handlers.RotatingFileHandler.emit

    def slow(self: logging.handlers.RotatingFileHandler, record: logging.LogRecord) -> None:
        released.wait(30)
        original(self, record)

    monkeypatch.setattr("goddard.logs._QUEUE_RECORDS", 10)
    monkeypatch.setattr(logging.handlers.RotatingFileHandler, "emit", slow)
    file = tmp_path / "namesrv.log"
    with logging_to(file):
        for number in range(100):
            _logger.info("record %d", number)
        released.set()
        deadline = threading.Event()
        for number in range(200):
            _logger.info("later %d", number)
            if deadline.wait(0.005):
                break
            if file.exists() and "were dropped" in file.read_text():
                break
    text = file.read_text()
    assert "record 0\n" in text
    assert "record 99\n" not in text
    assert "log records were dropped" in text


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a folder should be")
    with (
        pytest.raises(ConfigError, match="cannot be written"),
        logging_to(tmp_path / "logs" / "namesrv.log"),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ('<configuration><root level="WARN"/></configuration>', logging.WARNING),
        ('<root\n  level = "debug">', logging.DEBUG),
        ('<!-- <root level="ERROR"/> --><root level="INFO"/>', logging.INFO),
        ('<root level="OFF"/>', logging.CRITICAL + 1),
        ('<root level="LOUD"/>', logging.INFO),
        ("no xml at all", logging.INFO),
    ],
)
def test_the_root_level_of_logback_is_used(tmp_path: Path, text: str, level: int) -> None:
    file = tmp_path / "logback_namesrv.xml"
    file.write_text(text)
    assert logback_level(file) == level


def test_without_logback_the_level_is_info(tmp_path: Path) -> None:
    assert logback_level(tmp_path / "none.xml") == logging.INFO
