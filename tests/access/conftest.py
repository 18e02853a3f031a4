from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test that uses it runs with several umasks."""
    before = os.umask(request.param)
    yield
    os.umask(before)
