"""Reproduction of BFTrainer's evaluation: every figure and table that a trace and two job sets allow."""
