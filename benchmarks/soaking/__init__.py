"""What `benchmarks/soak.py` is made of."""
