"""Verbs of those who run an installation."""
