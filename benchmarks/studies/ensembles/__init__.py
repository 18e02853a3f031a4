"""The ensemble of `benchmarks/studies/ensemble_training.py`, and how it is trained in each way."""
