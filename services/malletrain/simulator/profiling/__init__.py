"""Profiles in replays: what learning curves costs, and what it is worth."""
