"""The per-job supervisor: owns the worker processes of one job; runs in the training environment."""
