"""What the trainer and those who check it have to agree on."""

from __future__ import annotations

SIZE = 840
"""Samples in the dataset."""
BATCH = 2
"""Samples per worker and step."""
