"""The test bench: clocks, transports, faults, and daemons (ours and Java's) under a test's control.

It may import anything; production code never imports it.
"""
