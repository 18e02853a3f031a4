"""Modules whose docstring says that they are pure are the sources of a contract of `make check`."""

from __future__ import annotations

from pathlib import Path

from tools.pure_contract import pure_modules


def test_modules_and_packages_that_say_it_are_checked(tmp_path: Path) -> None:
    root = tmp_path / "malletrain"
    for name, text in {
        "allocator/__init__.py": '"""Solves."""',
        "allocator/objective.py": '"""The objective. Pure."""',
        "allocator/loop.py": '"""Drives the machine, which is pure."""',
        "fleet/__init__.py": '"""Plans of fleets. Pure."""',
        "fleet/rates.py": "",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert set(pure_modules((root,))) == {"malletrain.allocator.objective", "malletrain.fleet"}
