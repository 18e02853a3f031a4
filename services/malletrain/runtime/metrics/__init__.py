"""Metrics for Prometheus: what all services have in common, and the HTTP endpoint of each."""
