"""The tutorial as a notebook: the same cells, and they run from top to bottom on live services."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import pytest

from tools.docs import notebook
from tools.docs.pages import ROOT

TUTORIAL = (ROOT / notebook.SOURCE).read_text(encoding="utf-8")


def test_prose_and_blocks_become_cells() -> None:
    page = (
        "# Title\n\n[This page as a notebook](t.ipynb) is there.\n\n## 1. Begin\n\nSee [a guide](guide.md) and "
        "[Optuna](https://optuna.org).\n\n```python\nx = 1\n```\n\n<!-- docs-test: file: train.py -->\n"
        "```python\nprint(2)\n```\n\nThe end.\n"
    )
    cells = json.loads(notebook.notebook(page))["cells"]
    assert [(cell["cell_type"], cell["source"]) for cell in cells] == [
        ("markdown", "# Title\n\n## 1. Begin\n\nSee a guide and [Optuna](https://optuna.org)."),
        ("code", "x = 1"),
        ("code", "%%writefile train.py\nprint(2)"),
        ("markdown", "The end."),
    ]
    assert len({cell["id"] for cell in cells}) == len(cells)


def test_it_is_a_valid_notebook_with_every_block_of_the_page() -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient and ipykernel")
    found = nbformat.reads(notebook.notebook(TUTORIAL), as_version=4)
    nbformat.validate(found)
    code = [cell.source for cell in found.cells if cell.cell_type == "code"]
    assert len(code) == TUTORIAL.count("```python")
    assert sum(source.startswith("%%writefile ") for source in code) == 2


@pytest.mark.long
@pytest.mark.system
@pytest.mark.timeout(900)
def test_it_runs_from_top_to_bottom(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient and ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="needs nbclient and ipykernel")
    pytest.importorskip("optuna", reason="needs optuna")
    found = nbformat.reads(notebook.notebook(TUTORIAL), as_version=4)
    kernel = tmp_path / "kernels/python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(tmp_path):
        patch.setenv("JUPYTER_PATH", str(tmp_path))
        patch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        nbclient.NotebookClient(found, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "\n".join(
        output.get("text", "") + str(output.get("data", {}).get("text/html", ""))
        for cell in found.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "epoch 11: accuracy 0." in said
    assert "COMPLETED 40" in said, said
    assert "{'lr': " in said
