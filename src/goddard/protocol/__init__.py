"""RocketMQ's wire formats: encoding and decoding, without I/O, clock or logging.

``frame`` splits a byte stream into commands; ``headers`` defines typed header fields; ``bodies*``
and ``fastjson`` read and write JSON bodies; ``message`` and ``record`` define messages; ``filters``
selects messages by tag expression or SQL92. Decoding malformed bytes raises ProtocolError and
nothing else.

The names that every peer needs are imported from here. Messages and records are imported from their
own modules. Only ``bulk_hashing`` imports NumPy, which clients and name servers do not need.
"""

from goddard.errors import HeaderError, ProtocolError
from goddard.protocol.codes import (
    CommandFlag,
    LanguageCode,
    Permission,
    RequestCode,
    ResponseCode,
    SerializeType,
)
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from goddard.protocol.headers.header import Header
from goddard.protocol.responses import ResponseError, check

__all__ = [
    "CommandFlag",
    "FrameDecoder",
    "Header",
    "HeaderError",
    "LanguageCode",
    "Permission",
    "ProtocolError",
    "RemotingCommand",
    "RequestCode",
    "ResponseCode",
    "ResponseError",
    "SerializeType",
    "check",
    "decode_frame",
    "encode_frame",
]
