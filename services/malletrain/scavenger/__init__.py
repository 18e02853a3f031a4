"""Scavenger: which nodes the batch scheduler leaves idle."""
