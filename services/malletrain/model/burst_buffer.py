"""Amounts of burst buffer in words."""

from __future__ import annotations

GB_PER_TB = 1000


def burst_buffer_in_words(gb: int) -> str:
    """An amount as people write it, exactly, e.g. "500 GB", "2 TB" or "1.25 TB"."""
    if gb < GB_PER_TB:
        return f"{gb} GB"
    whole, rest = divmod(gb, GB_PER_TB)
    return f"{whole}.{rest:03}".rstrip("0").rstrip(".") + " TB"
