"""Serves the pages to browsers."""
