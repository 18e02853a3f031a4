"""Profiler in a replay: noisy measurements, curves learned from them, and their accuracy."""
