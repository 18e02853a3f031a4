"""Tests look at behaviour: what is private of others they leave alone, but where there is no other way."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

PUBLIC_BY_CUSTOM = frozenset({"_replace", "_asdict", "_fields", "_make", "_repr_html_"})
"""Of named tuples and of IPython: documented, with an underscore so that they are no names of fields."""


class Permitted(NamedTuple):
    """How often a file may use what is private, and why."""

    times: int
    reason: str


PERMITTED = {
    "allocator/utilization/test_definition.py": Permitted(2, "what a cache keeps shows in its memory only"),
    "allocator/utilization/test_meter.py": Permitted(1, "how much is kept shows in the memory only"),
    "client/feed/test_schedule.py": Permitted(1, "where the oldest sample lies shows in the memory only"),
    "client/sharded_saver.py": Permitted(2, "to ask `is_saved` would collect what is written"),
    "client/test_checkpoint_manager.py": Permitted(1, "a manager that has saved nothing yet, with what it has said"),
    "client/test_framework_training.py": Permitted(2, "torch's list of hooks; the moment between two steps of a step"),
    "client/test_leave_time.py": Permitted(2, "a ring in place of that of a sidecar"),
    "frameworks/phases.py": Permitted(2, "phases of the one client of this process are noted"),
    "frameworks/test_accelerate.py": Permitted(2, "accelerate's own way to forget its state"),
    "frameworks/test_lightning.py": Permitted(1, "a counter of Lightning that must be the same after a restart"),
    "frameworks/zero_accelerator_refusals.py": Permitted(2, "accelerate's own way to forget its state"),
    "frameworks/zero_refusals.py": Permitted(1, "a configuration of DeepSpeed that needs a disk otherwise"),
    "frameworks/zero_trainer.py": Permitted(2, "states of DeepSpeed that it has not linked yet"),
    "gpu/test_client.py": Permitted(1, "torch has no public kernel that takes long"),
    "hostile/test_defects.py": Permitted(1, "a defect is simulated"),
    "hostile/test_restore.py": Permitted(1, "a start itself, without the wait for what the Scavenger knows of hosts"),
    "hostile/test_standby_packets.py": Permitted(1, "a connection on which packets never end"),
    "job_manager/test_change_spans.py": Permitted(1, "how much is kept shows in the memory only"),
    "job_manager/test_recording.py": Permitted(4, "defects of the machine are simulated"),
    "runtime/tracing/test_otlp.py": Permitted(3, "how long OpenTelemetry's queue is"),
    "supervisor/trainer.py": Permitted(4, "a worker dies, or is slow, within Horovod's start and the first exchange"),
    "support/second_try.py": Permitted(1, "pytest-rerunfailures leaves the teardown of fixtures to pytest's own state"),
    "training/noise_elastic_trainer.py": Permitted(3, "the state of a measurement before and after a restart"),
    "training/noting.py": Permitted(4, "which samples torch's loader has read for a step"),
    "training/test_gradient_noise.py": Permitted(1, "torch's list of hooks"),
}
"""Files below `tests`; a new one needs a reason as good as these."""


def test_private_members_are_used_in_few_files_and_each_has_a_reason() -> None:
    found = {
        str(path.relative_to(ROOT / "tests")): len(uses)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (uses := list(private_uses(path.read_text(encoding="utf-8"))))
    }
    assert found == {path: permitted.times for path, permitted in PERMITTED.items()}


def test_what_is_private_is_found_in_each_way_in_which_it_is_reached() -> None:
    reached = "from a import _b\nself.c._d.e\nmonkeypatch.setattr(c, '_d', 1)\npatch.setattr('a.b._D', 1)\n"
    assert sorted(private_uses(reached)) == ["_D", "_b", "_d", "_d"]
    left = (
        "import os\nos._exit(1)\nself._a\ncls._b\nsuper()._c()\nrow._replace(a=1)\nd.__dict__\nx.setattr(c, 'd', 1)\n"
    )
    assert list(private_uses(left)) == []
    assert list(private_uses("queue._items")) == ["_items"], "no module of Python is imported by that name"


def private_uses(code: str) -> Iterator[str]:
    """Private names of others that code reads, imports or patches, in no order that means anything."""
    nodes = list(ast.walk(ast.parse(code)))
    imported = {entry.name for node in nodes if isinstance(node, ast.Import) for entry in node.names}
    of_python = imported & sys.stdlib_module_names
    for node in nodes:
        match node:
            case ast.Attribute() if is_private(node.attr):
                owner = ast.unparse(node.value)
                if owner not in ("self", "cls", "super()") and owner.partition(".")[0] not in of_python:
                    yield node.attr
            case ast.ImportFrom():
                yield from (entry.name for entry in node.names if is_private(entry.name))
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr")):
                constants = (entry.value for entry in node.args[:2] if isinstance(entry, ast.Constant))
                names = (value.rpartition(".")[2] for value in constants if isinstance(value, str))
                yield from filter(is_private, names)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC_BY_CUSTOM
