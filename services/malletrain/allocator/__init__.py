"""Allocator: which nodes each job gets."""
