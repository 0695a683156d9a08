"""Replication: a master sends its log to slaves in RocketMQ's HA protocol.

``frames`` has the bytes of the protocol and ``decisions`` what to send, whom to count and when to
disconnect; both are pure. ``master`` serves the HA port. It belongs to the loop, and is below the
broker: it knows the store, but no topics and no requests.
"""
