"""Fleets in a plan: one job in place of the members, and how its nodes are divided among them. Pure."""
