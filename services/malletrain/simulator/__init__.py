"""Simulator: replays idle traces through the production allocator."""
