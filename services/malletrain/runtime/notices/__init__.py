"""Delivers notices to what the operator names: a webhook, a command."""
