"""The test bench: clocks, transports, faults, and daemons (ours and Java's) under a test's control.

``Cluster`` starts real daemons on free ports, ``FaultProxy`` stands between them and spoils their
links, ``ManualClock`` moves when told to, ``join`` connects two protocols in memory. The official
RocketMQ is in ``goddard.testing.java``, and needs Java.

It may import anything; production code never imports it.
"""

from goddard.testing.clock import ManualClock
from goddard.testing.cluster import Cluster, Daemon
from goddard.testing.memory import MemoryTransport, join, join_connections
from goddard.testing.ports import lease_port
from goddard.testing.process import Process, ProcessError, wait_until
from goddard.testing.proxy import FaultProxy

__all__ = [
    "Cluster",
    "Daemon",
    "FaultProxy",
    "ManualClock",
    "MemoryTransport",
    "Process",
    "ProcessError",
    "join",
    "join_connections",
    "lease_port",
    "wait_until",
]
