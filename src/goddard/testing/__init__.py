"""Real daemons on free ports, topics and pytest fixtures, for tests of programs that use RocketMQ.

``Cluster`` starts Goddard's daemons, ``Site`` creates topics on them; the pytest fixtures are in
``goddard.testing.plugin``. Daemons need the extra ``server``.

Production code never imports this package. The names below are imported on first use, because
pytest imports this package in every project that has Goddard installed.
"""

from importlib import import_module

# As in `typing`, which takes longer to import than all of this.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from goddard.testing.cluster import Cluster, Daemon
    from goddard.testing.ports import lease_port
    from goddard.testing.process import Process, ProcessError, wait_until
    from goddard.testing.site import Site
else:
    _HOMES = {
        "Cluster": "cluster",
        "Daemon": "cluster",
        "Process": "process",
        "ProcessError": "process",
        "Site": "site",
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
    "Process",
    "ProcessError",
    "Site",
    "lease_port",
    "wait_until",
]
