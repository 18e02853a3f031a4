"""Asking a batch scheduler which nodes it can't fill."""
