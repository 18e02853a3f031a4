"""Ensembles on idle nodes that come and go."""
