"""Goddard: RocketMQ in Python, with Spark built in."""

__version__ = "0.1.0"
