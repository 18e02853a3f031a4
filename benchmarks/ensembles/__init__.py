"""The ensemble of `benchmarks/ensemble_training.py`, and how it is trained in each way."""
