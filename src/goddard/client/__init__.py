"""Producers, consumers and administration against any RocketMQ cluster.

The classes here are asyncio's; ``goddard`` has the blocking ones over them and ``goddard.aio`` is
the short way to these. A Session (connections, routes, heartbeats) is shared by all clients of one
client id; everything of a client runs on the loop that it was started on.
"""
