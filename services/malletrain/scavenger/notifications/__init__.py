"""Tells the operator's webhook and command of nodes that are not well."""
