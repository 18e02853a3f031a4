from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.client.elastic import module_for


@pytest.mark.parametrize(
    ("environ", "module"),
    [
        ({}, "malletrain.client.distributed"),
        ({"RANK": "0"}, "malletrain.client.distributed"),
        ({"HOROVOD_RANK": "0"}, "malletrain.client.horovod"),
        ({"HOROVOD_ELASTIC": "1"}, "malletrain.client.horovod"),
        ({"MALLETRAIN_BACKEND": "torchrun", "HOROVOD_RANK": "0"}, "malletrain.client.distributed"),
        ({"MALLETRAIN_BACKEND": "horovod", "RANK": "0"}, "malletrain.client.horovod"),
    ],
)
def test_the_helper_fits_the_launcher(environ: dict[str, str], module: str) -> None:
    assert module_for(environ) == module


def test_a_launcher_without_a_helper_is_named() -> None:
    with pytest.raises(ValueError, match=r"^MALLETRAIN_BACKEND: expected horovod or torchrun, got 'command'$"):
        module_for({"MALLETRAIN_BACKEND": "command"})


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("malletrain.client", ("torch", "horovod", "grpc", "numpy")),
        ("malletrain.client.sidecar", ("torch", "horovod", "numpy")),
        ("malletrain.client.distributed", ("horovod", "grpc")),
    ],
)
def test_each_part_loads_no_more_than_it_needs(module: str, absent: tuple[str, ...]) -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        f"import {module}\n"
        f"print(sorted({set(absent)!r} & (set(sys.modules) - before)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
