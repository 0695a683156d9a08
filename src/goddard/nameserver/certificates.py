"""TLS settings with RocketMQ's property names, and reloading of changed certificate files.

The properties are set in the configuration file: ``tls.server.mode`` (disabled,
permissive, enforcing), ``tls.server.certPath``, ``tls.server.keyPath``,
``tls.server.keyPassword``, ``tls.server.trustCertPath``, ``tls.server.need.client.auth``.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path

from goddard.errors import ConfigError
from goddard.transport.tls import TlsMode, TlsOptions

_log = logging.getLogger(__name__)


def tls_options(properties: Mapping[str, str]) -> TlsOptions | None:
    """TLS as configured; None without a certificate, unless TLS is enforced."""
    text = properties.get("tls.server.mode", TlsMode.PERMISSIVE).strip().lower()
    try:
        mode = TlsMode(text)
    except ValueError as error:
        modes = ", ".join(TlsMode)
        raise ConfigError(f"tls.server.mode={text[:80]}: one of {modes} is needed") from error
    certificate = _path(properties, "tls.server.certPath")
    if mode is TlsMode.DISABLED or (certificate is None and mode is TlsMode.PERMISSIVE):
        return None
    if certificate is None:
        raise ConfigError("tls.server.mode=enforcing needs tls.server.certPath and .keyPath")
    wants_client = properties.get("tls.server.need.client.auth", "none").strip().lower()
    return TlsOptions(
        mode=mode,
        certificate=certificate,
        key=_path(properties, "tls.server.keyPath"),
        key_password=properties.get("tls.server.keyPassword") or None,
        trust=_path(properties, "tls.server.trustCertPath"),
        verify_peer=wants_client == "require",
    )


def _path(properties: Mapping[str, str], name: str) -> Path | None:
    text = properties.get(name, "").strip()
    return Path(text) if text else None


class CertificateWatch:
    """Calls ``reload`` after a watched file has changed; the owner calls ``check`` periodically.

    An executor thread checks and loads the files, because loading a key with a password is slow. A
    failed reload is retried at the next check: a certificate and its key are two files, which do
    not match until both are written. Each reason is logged once.
    """

    def __init__(
        self, options: TlsOptions | None, executor: Executor, reload: Callable[[], None]
    ) -> None:
        named = (options.certificate, options.key, options.trust) if options is not None else ()
        self._files = [file for file in named if file is not None]
        self._executor = executor
        self._reload = reload
        self._loaded = self._read_stamps()
        self._logged_reason: str | None = None

    async def check(self) -> None:
        if not self._files:
            return
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._executor, self._read_stamps)
        if found == self._loaded:
            return
        try:
            await loop.run_in_executor(self._executor, self._reload)
        except ConfigError as error:
            if str(error) != self._logged_reason:
                self._logged_reason = str(error)
                _log.warning("the changed TLS files are not in use yet: %s", error)
            return
        self._loaded = found
        self._logged_reason = None
        _log.info("The certificate and private key changed, reload the ssl context")

    def _read_stamps(self) -> list[tuple[int, int] | None]:
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
