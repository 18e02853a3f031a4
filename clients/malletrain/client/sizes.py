"""Numbers of bytes for people."""

from __future__ import annotations


def in_words(size: float) -> str:
    """A number of bytes, in MB below 1 GB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
