"""What `benchmarks/control_loop.py` is made of."""
