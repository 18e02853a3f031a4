"""Metrics and spans of the Scavenger."""
