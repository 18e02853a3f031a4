"""Traces of idle nodes: statistics, conversion from logs of schedulers, and synthesis."""
