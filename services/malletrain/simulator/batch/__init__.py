"""Batch simulator: from a job log to a schedule, and to the nodes that it leaves idle."""
