"""Exact solvers of an allocation problem: dynamic programming and MILP, in a process of their own."""
