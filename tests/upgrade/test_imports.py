"""What runs while files are replaced under it imports nothing of MalleTrain after its start."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *(f"services/malletrain/{name}" for name in ("agent", "common", "model", "supervisor", "tls")),
    "clients/malletrain/client",
)
AT_START = {
    ("services/malletrain/supervisor/backends.py", "_open_group"),
    ("clients/malletrain/client/accelerate.py", "_zero"),
}
"""Functions that run before the process serves anybody."""


def late_imports(text: str) -> Iterator[tuple[str, str]]:
    """Functions of a module that import modules of MalleTrain, and what they import."""
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        for node in ast.walk(function):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            yield from ((getattr(function, "name", ""), name) for name in names if name.startswith("malletrain"))


def test_supervisors_agents_and_trainers_have_imported_all_of_it_at_their_start() -> None:
    found = {
        (str(path.relative_to(ROOT)), function)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for function, _ in late_imports(path.read_text())
    }
    assert found == AT_START


def test_a_late_import_is_noticed() -> None:
    text = "import malletrain.a\ndef f():\n    import json\n    from malletrain.b import c\n"
    assert list(late_imports(text)) == [("f", "malletrain.b")]
