"""RocketMQ's wire formats: bytes in, values out, and back. No I/O, no clock, no logging.

``frame`` cuts streams into commands; ``header`` and the ``headers_*`` modules give their fields
types; ``bodies*`` and ``fastjson`` do so for JSON bodies; ``message`` and ``record`` for messages.
Whatever a peer sends, decoding it raises ProtocolError or nothing.
"""
