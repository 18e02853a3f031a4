"""Parts of `benchmarks/frameworks.py`."""
