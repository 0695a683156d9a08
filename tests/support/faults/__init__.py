"""Clusters of real processes with faults: what the simulation does in virtual time, in real time.

``schedule`` makes the modes and the faults of a round from its seed. ``network`` gives each node a
network namespace (``loopback``: where that is not allowed), ``cluster`` starts the processes,
``broker`` is ``goddard broker`` with a clock and a disk that ``control`` changes. ``inject`` makes
the faults happen, ``observe`` asks brokers and name servers, ``run`` is one round: the clients of
``tests.support.workload``, a safety phase with faults, a liveness phase without, and the checks
of ``tests.support.history``.
"""
