"""Utilization efficiency U of a running system, minute by minute."""
