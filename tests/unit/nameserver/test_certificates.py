"""TLS settings with RocketMQ's names, and reloading of certificate files."""

import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goddard.errors import ConfigError
from goddard.nameserver.certificates import CertificateWatch, tls_options
from goddard.transport.tls import TlsMode, TlsOptions


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_without_a_certificate_there_is_no_tls() -> None:
    assert tls_options({}) is None
    assert tls_options({"tls.server.mode": "permissive"}) is None
    assert tls_options({"tls.server.mode": "disabled", "tls.server.certPath": "c"}) is None
    with pytest.raises(ConfigError, match="certPath"):
        tls_options({"tls.server.mode": "enforcing"})
    with pytest.raises(ConfigError, match="disabled, permissive, enforcing"):
        tls_options({"tls.server.mode": "sometimes"})


def test_all_properties_are_read() -> None:
    assert tls_options(
        {
            "tls.server.mode": "Enforcing",
            "tls.server.certPath": "c.pem",
            "tls.server.keyPath": "k.pem",
            "tls.server.keyPassword": "secret",
            "tls.server.trustCertPath": "t.pem",
            "tls.server.need.client.auth": "require",
        }
    ) == TlsOptions(
        mode=TlsMode.ENFORCING,
        certificate=Path("c.pem"),
        key=Path("k.pem"),
        key_password="secret",
        trust=Path("t.pem"),
        verify_peer=True,
    )


def _write(file: Path, text: str, age: int) -> None:
    file.write_text(text)
    os.utime(file, ns=(age, age))


async def test_a_changed_file_is_loaded_again(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    _write(certificate, "one", 1)
    _write(key, "one", 1)
    loaded: list[str] = []
    fits = True

    def reload() -> None:
        if not fits:
            raise ConfigError("the key does not fit the certificate")
        loaded.append("loaded")

    watch = CertificateWatch(TlsOptions(certificate=certificate, key=key), executor, reload)
    await watch.check()
    assert loaded == []
    _write(certificate, "two", 2)
    fits = False
    await watch.check()
    assert loaded == []
    _write(key, "two", 2)
    fits = True
    await watch.check()
    await watch.check()
    assert loaded == ["loaded"]


async def test_a_failed_reload_is_logged_once(
    tmp_path: Path, executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = tmp_path / "c.pem"
    _write(certificate, "one", 1)
    reasons = ["no key", "no key", "no key", "no rights", "no rights", None, None]
    attempts = iter(reasons)

    def reload() -> None:
        if (reason := next(attempts)) is not None:
            raise ConfigError(reason)

    watch = CertificateWatch(TlsOptions(certificate=certificate), executor, reload)
    _write(certificate, "two", 2)
    for _ in reasons:
        await watch.check()
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert "no key" in warnings[0]
    assert "no rights" in warnings[1]


async def test_files_are_read_in_the_executor(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    certificate = tmp_path / "c.pem"
    _write(certificate, "one", 1)
    threads: list[int] = []
    watch = CertificateWatch(
        TlsOptions(certificate=certificate), executor, lambda: threads.append(threading.get_ident())
    )
    _write(certificate, "two", 2)
    await watch.check()
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_check_without_files_does_nothing(executor: ThreadPoolExecutor) -> None:
    def reload() -> None:
        raise AssertionError

    await CertificateWatch(None, executor, reload).check()
