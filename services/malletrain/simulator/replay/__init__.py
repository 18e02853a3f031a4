"""Replays: elastic jobs on the idle nodes of a trace."""
