"""Which phases an adapter enters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from malletrain import client
from malletrain.client.phases import Phases
from malletrain.client.ring import PhaseReader, create_ring
from malletrain.client.warn_once import WarnOnce


@contextmanager
def recorded_phases(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the phases that have been entered and left when the context ends, each once, in order."""
    ring, found = create_ring(), list[str]()
    phases = Phases(lambda: ring, time.time_ns, WarnOnce())
    monkeypatch.setattr(client._client, "_phases", phases)
    yield found
    seen = PhaseReader(ring).read()
    assert all(phase.end_ns for phase in seen[:-1])
    found.extend(dict.fromkeys(phase.name for phase in seen))
