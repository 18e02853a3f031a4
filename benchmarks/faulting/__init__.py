"""Making things break: the parts of `benchmarks/faults.py`."""
