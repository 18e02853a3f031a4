"""Verbs of those who hand in jobs and look at them."""
