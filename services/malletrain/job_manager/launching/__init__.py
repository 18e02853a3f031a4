"""Starts, commands and ends the supervisors of jobs."""
