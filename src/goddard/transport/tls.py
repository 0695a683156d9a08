"""TLS for both ends; a server distinguishes TLS and plain clients on the same port.

A TLS connection starts with a handshake record, whose first byte is 0x16; no remoting frame within
the frame limit starts with it. RocketMQ's servers and ours use that byte to decide:

    disabled     plain only; TLS clients are refused
    permissive   TLS or plain
    enforcing    TLS only; plain clients are refused
"""

import enum
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from goddard.errors import ArgumentTypeError, ConfigError

HANDSHAKE_BYTE: Final = 0x16


class TlsMode(enum.StrEnum):
    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Our certificate and the requirements for the peer's; PEM files.

    ``certificate`` and ``key`` are our own (a client may have none). ``trust`` holds the
    certificate authorities that we accept; ``verify_peer`` requires a certificate of one of them
    from the peer, as RocketMQ's ``tls.server.need.client.auth`` and ``tls.client.authServer`` do. A
    client that verifies also checks the host name if ``check_hostname`` is set; RocketMQ's clients
    never do, because brokers are addressed by IP.
    """

    mode: TlsMode = TlsMode.PERMISSIVE
    certificate: Path | None = None
    key: Path | None = None
    key_password: str | None = None
    trust: Path | None = None
    verify_peer: bool = False
    check_hostname: bool = False

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "mode", TlsMode(self.mode))
        except ValueError:
            modes = ", ".join(repr(mode.value) for mode in TlsMode)
            raise ConfigError(f"mode of TLS is {self.mode!r}; it must be one of {modes}") from None
        for name in ("certificate", "key", "trust"):
            path = getattr(self, name)
            if path is not None and not isinstance(path, str | Path):
                raise ArgumentTypeError(f"{name} of TLS is {path!r:.200}; it must be a Path")
        for name in ("verify_peer", "check_hostname"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentTypeError(
                    f"{name} of TLS is {getattr(self, name)!r:.200}; it must be True or False"
                )
        password: object = self.key_password
        if not isinstance(password, str | None):
            kind = type(password).__name__
            raise ArgumentTypeError(f"key_password of TLS is of type {kind}; it must be str")

    def server_context(self) -> ssl.SSLContext | None:
        """None if TLS is disabled."""
        if self.mode is TlsMode.DISABLED:
            return None
        if self.certificate is None:
            raise ConfigError(f"TLS mode {self.mode} needs a certificate and a key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        context.verify_mode = ssl.CERT_REQUIRED if self.verify_peer else ssl.CERT_NONE
        return context

    def client_context(self) -> ssl.SSLContext | None:
        """None if TLS is disabled; for a client, permissive and enforcing are the same."""
        if self.mode is TlsMode.DISABLED:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.verify_peer and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify_peer else ssl.CERT_NONE
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.verify_peer and self.trust is None:
            raise ConfigError("verifying the TLS peer needs a file of trusted authorities")
        try:
            if self.certificate is not None:
                # Always pass a password: without one, OpenSSL would ask at the terminal.
                context.load_cert_chain(self.certificate, self.key, self.key_password or "")
            if self.trust is not None:
                context.load_verify_locations(self.trust)
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(
                str(path) for path in (self.certificate, self.key, self.trust) if path
            )
            raise ConfigError(f"the TLS files {names} cannot be used: {error}") from error
