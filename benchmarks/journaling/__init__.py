"""What `benchmarks/journal.py` is made of."""
