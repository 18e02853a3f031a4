"""Trainings for `benchmarks/feed.py`."""
