"""Tells the operator's webhook and command what has become of jobs."""
