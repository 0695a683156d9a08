"""The test bench: clocks, transports, faults, and daemons (ours and Java's) under a test's control.

``Cluster`` starts real daemons on free ports, ``Site`` gives tests topics on them, ``FaultProxy``
stands between them and spoils their links, ``ManualClock`` moves when told to, ``join`` connects
two protocols in memory. The official RocketMQ is in ``goddard.testing.java``, and needs Java;
fixtures for anybody's tests are in ``goddard.testing.plugin``.

It may import anything; production code never imports it. The names below are imported when they are
first used, because pytest imports this package in every project that has Goddard installed.
"""

from importlib import import_module

# As in `typing`, which takes longer to import than all of this.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from goddard.testing.clock import ManualClock
    from goddard.testing.cluster import Cluster, Daemon
    from goddard.testing.memory import MemoryTransport, join, join_connections
    from goddard.testing.ports import lease_port
    from goddard.testing.process import Process, ProcessError, wait_until
    from goddard.testing.proxy import FaultProxy
    from goddard.testing.site import Site
else:
    _HOMES = {
        "Cluster": "cluster",
        "Daemon": "cluster",
        "FaultProxy": "proxy",
        "ManualClock": "clock",
        "MemoryTransport": "memory",
        "Process": "process",
        "ProcessError": "process",
        "Site": "site",
        "join": "memory",
        "join_connections": "memory",
        "lease_port": "ports",
        "wait_until": "process",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


__all__ = [
    "Cluster",
    "Daemon",
    "FaultProxy",
    "ManualClock",
    "MemoryTransport",
    "Process",
    "ProcessError",
    "Site",
    "join",
    "join_connections",
    "lease_port",
    "wait_until",
]
