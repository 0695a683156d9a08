"""The exception classes. Every error that Goddard raises deliberately is a GoddardError.

The errors for response codes are in ``goddard.protocol.responses``.
"""


class GoddardError(Exception):
    """Base of every error that Goddard raises deliberately."""


class ConfigError(GoddardError):
    """A configuration file, option or environment variable is invalid; the text says which."""


class ArgumentTypeError(ConfigError, TypeError):
    """An option or argument has the wrong type; also a TypeError, as in any Python function."""


class ProtocolError(GoddardError):
    """Bytes from a peer do not follow the protocol. Decoders raise nothing else."""


class HeaderError(ProtocolError):
    """A header field of a well-formed frame is missing or has the wrong type.

    The frame boundary is intact, so the request gets an error response and the connection stays
    open.
    """


class RemotingError(GoddardError):
    """A request got no response, because of the network or of a limit on our side."""

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class ConnectFailedError(RemotingError):
    """A connection to the address could not be opened."""


class ConnectionLostError(RemotingError):
    """The connection closed before the response arrived; the peer may have executed the request."""


class RequestTimeoutError(RemotingError):
    """No response arrived within the timeout; the peer may have executed the request."""


class ServerShuttingDownError(RemotingError):
    """The server is shutting down (GO_AWAY); it did not execute this request."""


class OverloadedError(RemotingError):
    """Too many requests in flight, or too many unsent bytes; the request was not sent."""


class StoreError(GoddardError):
    """Base of the errors of the message store."""
