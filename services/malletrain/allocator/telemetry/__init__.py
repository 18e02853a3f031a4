"""Metrics and spans of the Allocator."""
