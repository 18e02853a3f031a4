"""Launchers: how a job's processes are started, kept on their nodes, and ended."""
