"""The exception tree. Everything that Goddard raises on purpose is a GoddardError.

Errors that a response code stands for live in ``goddard.protocol.responses``, beside the codes.
"""


class GoddardError(Exception):
    """Base of every error that Goddard raises on purpose."""


class ConfigError(GoddardError):
    """A configuration file, option or environment variable is wrong; the text says which."""


class ProtocolError(GoddardError):
    """Bytes from a peer do not follow the protocol. Decoders raise nothing else."""


class HeaderError(ProtocolError):
    """A well-formed frame carries a header field that is missing or of the wrong type.

    The frame boundary is intact, so the request is answered with an error and the connection lives.
    """


class RemotingError(GoddardError):
    """A request did not get its response, for a reason on our side or on the way."""

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class ConnectFailedError(RemotingError):
    """No connection could be made to the address."""


class ConnectionLostError(RemotingError):
    """The connection closed before the response came; the peer may or may not have acted."""


class RequestTimeoutError(RemotingError):
    """No response within the time given; the peer may or may not have acted."""


class ServerShuttingDownError(RemotingError):
    """The server shuts down and takes no more requests (GO_AWAY); it did not act on this one."""


class OverloadedError(RemotingError):
    """Too much is waiting already (requests in flight, or unsent bytes); nothing was sent."""


class StoreError(GoddardError):
    """Base of errors of the message store."""
