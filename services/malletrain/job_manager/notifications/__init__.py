"""Sends notices of ended and waiting jobs to the operator's webhook and command."""
