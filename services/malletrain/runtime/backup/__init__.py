"""Backups of an installation: databases, keys and what the Scavenger keeps, in one archive."""
