"""`allocator.auto_tune`: T_fwd follows the installation's own past, step by step (docs/operators/tuning.md)."""
