"""BFTrainer's evaluation, run again: every figure and table that a trace and two job sets allow."""
