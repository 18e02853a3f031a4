"""The papers' evaluations: every figure and table that a trace, job sets and generated workloads allow."""
