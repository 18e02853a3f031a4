"""Profiler as a machine: pure, without messages, I/O and clock."""
