"""Helpers for this project's tests and benchmarks: Java, C++ and Spark peers, fakes, load."""
