"""RocketMQ's wire formats: bytes in, values out, and back. No I/O, no clock, no logging.

``frame`` cuts streams into commands; ``header`` and the ``headers_*`` modules give their fields
types; ``bodies*`` and ``fastjson`` do so for JSON bodies; ``message`` and ``record`` for messages;
``filter`` and ``sql92`` choose among them. Whatever a peer sends, decoding it raises ProtocolError
or nothing.

What every peer needs can be imported from here. Messages and records are imported from their own
modules. Only ``bulk_hashing`` brings NumPy along, which clients and name servers do without.
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
from goddard.protocol.header import Header
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
