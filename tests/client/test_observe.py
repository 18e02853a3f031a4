"""What is noted of a training's processes, without the training's noticing."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.client import observing_site

SCRIPT = """
import os, sys, time
import torch
from malletrain.client import install_signal_handler, report

folder = sys.argv[1]
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((4, 2), float(step))).sum().backward()
    optimizer.step()
    scheduler.step()
    report(4)
    if step == 1:
        install_signal_handler()
    torch.save(model.state_dict(), f"{folder}/in-place.pt")
    torch.save(model.state_dict(), f"{folder}/new")
    os.replace(f"{folder}/new", f"{folder}/whole.pt")
    with open(f"{folder}/state.pkl", "wb") as file:
        file.write(b"state")
    with open(f"{folder}/log.txt", "w") as file:
        file.write("no state")
model.eval()
with torch.no_grad():
    model(torch.zeros(4, 2))
try:
    torch.ones(2).backward()
except RuntimeError as error:
    print("the script's own error:", "grad" in str(error))
print(sys.argv, __name__, os.environ.get("HIDDEN"))
"""


def notes_of(tmp_path: Path, command: list[str], **environment: str) -> tuple[list[dict[str, Any]], str]:
    """What was noted, and what the script has printed."""
    (tmp_path / "train.py").write_text(SCRIPT)
    job = tmp_path / "job"
    job.mkdir()
    done = subprocess.run(
        command,
        env={**os.environ, "MALLETRAIN_JOB_DIR": str(job), **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    files = list((job / "observed").glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()], done.stdout


def test_a_python_that_a_wrapper_starts_is_looked_into(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import os\nos.environ['HIDDEN'] = 'was run'\n")
    path = os.pathsep.join((observing_site.__path__[0], str(hidden), os.environ.get("PYTHONPATH", "")))
    command = ["sh", "-c", f"{sys.executable} train.py {tmp_path}; true"]
    notes, printed = notes_of(tmp_path, command, PYTHONPATH=path, RANK="1", WORLD_SIZE="2")
    assert printed.splitlines() == ["the script's own error: True", f"['train.py', '{tmp_path}'] __main__ was run"]
    steps = [note for note in notes if "event" not in note]
    assert [(step["rank"], step["workers"], step["together"]) for step in steps] == [(1, 2, 1)] * 3
    assert [step["schedule"] for step in steps] == [[7, 0], [7, 1], [7, 2]]
    assert [step["reported"] for step in steps] == [0, 1, 2]
    assert [step["size"] for step in steps] == [4, 4, 4]
    assert len({row for step in steps for row in step["rows"]}) == 3
    assert all(later["before"] == earlier["after"] for earlier, later in itertools.pairwise(steps))
    overwritten = [Path(note["path"]).name for note in notes if note.get("event") == "overwritten"]
    assert overwritten == ["in-place.pt", "state.pkl"] * 2
    saved = [Path(note["path"]).name for note in notes if note.get("event") == "saved"]
    assert saved == ["in-place.pt", "new", "state.pkl"] * 3
    assert [step["base_rates"] for step in steps] == [[0.5]] * 3
    assert [step["heeds_stop"] for step in steps] == [False, False, True]
    assert sum(note.get("event") == "evaluates" for note in notes) == 1


def test_a_library_that_asks_whether_there_is_a_torch_before_it_is_imported_hides_nothing(tmp_path: Path) -> None:
    code = f"import importlib.util, runpy, sys; importlib.util.find_spec('torch'); sys.argv[1:] = ['{tmp_path}']; "
    path = os.pathsep.join((observing_site.__path__[0], os.environ.get("PYTHONPATH", "")))
    notes, _ = notes_of(tmp_path, [sys.executable, "-c", f"{code} runpy.run_path('train.py')"], PYTHONPATH=path)
    assert len([note for note in notes if "event" not in note]) == 3


def test_outside_a_job_nothing_is_written(tmp_path: Path) -> None:
    notes, _ = notes_of(
        tmp_path,
        [sys.executable, "-c", "import malletrain.client.observing, runpy; runpy.run_path('train.py')", str(tmp_path)],
        MALLETRAIN_JOB_DIR="",
    )
    assert notes == []
