"""The guide to the interface for Python, and a notebook as Jupyter executes it, on live services."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.docs.python import reference_pages

pytestmark = [pytest.mark.timeout(300)]

GUIDE = Path(__file__).parents[2] / "docs/python.md"
CELLS = (
    """
import malletrain, sys
cluster = malletrain.local(nodes=2, settings={"job_manager.standby_memory_mib": "0"})
cluster
""",
    "job = malletrain.submit([sys.executable, '-c', 'print(6 * 7)'], name='<b>bold</b>', backend='command')",
    "malletrain.jobs(mine=True).watch()",
    "job",
    "print(*job.logs())",
    "malletrain.Executor('functions').submit(lambda x: x + 1, 41).result()",
    "await job.wait_async()",
    "cluster.close()",
)


def guide_blocks() -> list[str]:
    text = re.sub(r"<!-- docs-test: skip.*?-->\n```python\n.*?```\n", "", GUIDE.read_text(), flags=re.DOTALL)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.long
@pytest.mark.system
def test_the_guide_runs_from_top_to_bottom(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('training')\n")
    first, *others = guide_blocks()
    code = [
        first,
        "with malletrain.local(nodes=2, settings={'job_manager.standby_memory_mib': '0'}) as cluster:",
        *("    " + line for block in others for line in block.splitlines()),
        "    assert job.wait(100) == 'COMPLETED'",
    ]
    (tmp_path / "guide.py").write_text("\n".join(code))
    run = [sys.executable, "guide.py"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "COMPLETED"
    assert lines[1].endswith("| trained")
    assert "min_nodse an option of jobs; do you mean min_nodes?" in lines
    assert lines[-2].endswith(" 1.8")
    assert lines[-1] == "[1.8, 0.5]"


@pytest.mark.long
@pytest.mark.system
def test_a_notebook_shows_jobs(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient and ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="needs nbclient and ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    kernel = tmp_path / "kernels/malletrain"
    kernel.mkdir(parents=True)
    argv = f'"{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"'
    (kernel / "kernel.json").write_text(f'{{"argv": [{argv}], "display_name": "malletrain", "language": "python"}}')
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(tmp_path):
        patch.setenv("JUPYTER_PATH", str(tmp_path))
        client = nbclient.NotebookClient(
            notebook, timeout=200, kernel_name="malletrain", resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
    outputs = [cell.outputs for cell in notebook.cells]
    assert "LocalCluster of 2 nodes" in outputs[0][0].data["text/plain"]
    table = outputs[2][0].data["text/html"]
    assert "COMPLETED" in table
    assert "&lt;b&gt;bold&lt;/b&gt;" in table
    assert "j000001" in outputs[3][0].data["text/html"]
    assert outputs[4][0].text.endswith("| 42\n")
    assert outputs[5][0].data["text/plain"] == "42"
    assert "COMPLETED" in outputs[6][0].data["text/plain"]


def test_the_reference_has_every_name() -> None:
    pages = reference_pages()
    python, client = pages["reference/python.md"], pages["reference/client.md"]
    for heading in ("## malletrain.submit", "### Job.wait", "### Executor.map", "## malletrain.JobFailedError"):
        assert f"\n{heading}\n" in python
    assert "- `gpu_memory`: Least memory of each GPU" in python
    assert "\n## malletrain.client.report\n" in client
    assert "def wait(timeout: float | None = None) -> JobState\n" in python
    assert str(Path(sys.prefix)) not in python + client
