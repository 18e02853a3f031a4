"""Traces of idle nodes: what they say, other programs' logs turned into them, and synthetic ones."""
