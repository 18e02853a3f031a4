"""What the benchmarks' options may be."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number, at least 1.

    Raises:
        argparse.ArgumentTypeError: it is less.
        ValueError: it is no number.
    """
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number
