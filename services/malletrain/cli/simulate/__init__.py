"""Verbs that compute and need no service: problems, replays, batch schedules, advice."""
