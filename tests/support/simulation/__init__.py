"""A whole cluster in one process, with virtual time: a run is a seed, and can be repeated.

Name servers, brokers and clients are the real code. What they get from the machine is simulated:

- ``loop``: an event loop with virtual time and a seeded order of callbacks, for all nodes
  together; jobs of executors run in it, after a seeded delay
- ``network``: byte streams with delays and chunks; links that are slow or cut, both ways or one
  way; resets; half-open connections
- ``disk``: files in memory; a power cut loses what was not synced; syncs fail, the disk is full
- ``node``: a machine: address, skewed clock, disk, and a process that can be killed
- ``cluster``: the daemons of a run
- ``workload``: producers (in order, with retries, delayed, transactional) and consumers
  (clustering, orderly), and what they saw, as a ``tests.support.history.History``
- ``faults``: a schedule of faults, made from the seed
- ``run``: one run: 20 virtual seconds with faults, then none until everything is consumed; then all
  queues are read, and ``tests.support.history.check`` says which invariants do not hold
- ``planted``: defects that the simulator has to find
- ``trace``: a hash of everything that happened; runs of one seed have the same

``make simulate SEED=7 RUNS=100`` runs seeds. For a seed that fails it prints the seed, a schedule
with as few faults as it takes, and what happened to the messages concerned. To look closer, run
that seed alone, with log lines: ``simulate(seed)`` in a Python shell.

What is not simulated: TLS, threads (listeners are coroutine functions; the locks of the store are
never contended), memory, and how long code takes to run.
"""
