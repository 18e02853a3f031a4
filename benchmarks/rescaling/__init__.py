"""What a rescale costs under different launchers: the parts of `benchmarks/rescale.py`."""
