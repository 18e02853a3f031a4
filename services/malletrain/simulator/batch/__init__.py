"""Batch simulator: a workload log in, a schedule and the idle nodes it leaves out."""
