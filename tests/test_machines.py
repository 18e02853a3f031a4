"""Machines of services know no messages. `tools.import_contracts` checks the rest, and can name no part of machines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SERVICES = Path(__file__).parent.parent / "services"


def test_machines_import_no_messages() -> None:
    files = sorted(SERVICES.glob("malletrain/*/machine/**/*.py"))
    modules = [".".join(file.relative_to(SERVICES).with_suffix("").parts).removesuffix(".__init__") for file in files]
    assert {"malletrain.job_manager.machine.jobs", "malletrain.allocator.machine.machine"} <= set(modules)
    script = (
        "import importlib, sys\n"
        f"for name in {modules}: importlib.import_module(name)\n"
        "print(*(name for name in sys.modules if name.startswith(('malletrain.v1', 'google.protobuf', 'grpc'))))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
