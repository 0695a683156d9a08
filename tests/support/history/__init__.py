"""What clients and operators saw of a cluster, and what it must have been.

A history is what a workload recorded, in simulated clusters and in real ones. ``check`` is pure; it
returns what is wrong, one sentence for each violation. The invariants have the numbers 1 to 15:
``messages`` has those that producers and consumers see, ``replicas`` those of masters and slaves.
"""

from tests.support.history.messages import check_messages
from tests.support.history.record import History
from tests.support.history.replicas import check_replicas


def check(history: History) -> list[str]:
    """All violations, the worst first."""
    return [*check_messages(history), *check_replicas(history)]
