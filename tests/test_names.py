"""Every public class has a name of its own, so that a search for it finds one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "services/malletrain", ROOT / "clients/malletrain")

ALLOWED = {
    "Connection": "what users of malletrain.api have, "
    "and one of a server in malletrain.runtime.admission.connection_limiter",
    "Job": "what users of malletrain.api have, and what JobManager's machine has",
    "ElasticTraining": "one interface for scripts, in malletrain.client.horovod and malletrain.client.distributed; "
    "malletrain.client.elastic chooses",
    "MalleTrainCallback": "one name for scripts, in malletrain.client.lightning and malletrain.client.transformers",
}
"""Names that more than one class may have, and why."""


def test_no_two_public_classes_have_the_same_name() -> None:
    modules = _modules_by_class()
    doubles = {name: sorted(where) for name, where in modules.items() if len(where) > 1 and not _are_stimuli(where)}
    assert {name: where for name, where in doubles.items() if name not in ALLOWED} == {}
    assert ALLOWED.keys() <= doubles.keys(), "no longer there twice: take it out of ALLOWED"


def _are_stimuli(modules: list[str]) -> bool:
    """Whether each machine has its own stimulus or effect of this name, such as `JobsReported`."""
    return all(name.endswith(".machine.stimuli") for name in modules)


def _modules_by_class() -> dict[str, list[str]]:
    """Modules that define each public class at their top level."""
    found: dict[str, list[str]] = defaultdict(list)
    for source in SOURCES:
        for path in source.rglob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(".".join(path.relative_to(source.parent).with_suffix("").parts))
    return found
