"""Profiler: the scaling curve of every job."""
