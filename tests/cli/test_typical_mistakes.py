"""Each typical mistake gets an answer that says what to do: the table of the docs, on live services."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import malletrain
from malletrain import LocalCluster
from malletrain.cli.jobs.submit import notes_on_script, script_of
from malletrain.cli.shared.settings import load
from tools.docs.mistakes import Mistake, page, read_mistakes

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

MISTAKES = read_mistakes()
_PATIENCE = 100.0
_AT_ONCE = 3
_FILES = {
    "train.py": "print('trained')\n",
    "run.sh": "#!/bin/sh\necho run\n",
    "crlf.sh": "#!/bin/sh\r\necho run\r\n",
    "plain.sh": "echo run\n",
    "slurm.sh": "#!/bin/sh\n#SBATCH --nodes=4\necho run\n",
    "job.yaml": "command: python train.py\n",
    "good.toml": 'command = ["python", "train.py"]\n',
    "typo.toml": "[scavenger]\ndebounce_second = 0\n",
}
_PROGRAMS = ("crlf.sh", "plain.sh", "slurm.sh")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the mistakes are made."""
    place = tmp_path_factory.mktemp("mistakes")
    for name, text in _FILES.items():
        (place / name).write_bytes(text.encode())
    for name in _PROGRAMS:
        (place / name).chmod(0o755)
    for mistake in MISTAKES:
        if mistake.file:
            (place / mistake.wrong.split()[-1]).write_text(f'command = ["python", "train.py"]\n{mistake.file}\n')
    return place


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    """Services, two jobs of one name that wait for more nodes than there are, and one that has ended: j000001."""
    with malletrain.local(nodes=4, settings={"job_manager.standby_memory_mib": "0"}) as running:
        (folder / "malletrain.toml").symlink_to(running.folder / "malletrain.toml")
        taken = load(running.folder / "malletrain.toml").addresses.scavenger
        (folder / "taken.toml").write_text(
            f'state_dir = "{folder}/second"\n[addresses]\nscavenger = "{taken}"\n'
            '[scavenger]\nsource = "static"\nnodes = ["n1"]\n'
        )
        running.submit(["python", "train.py"], name="train", workdir=folder)
        for _ in range(2):
            running.submit(["sleep", "1"], name="waiting", gpus=4, workdir=folder)
        yield running


@pytest.fixture(scope="module")
def answers(cluster: LocalCluster, folder: Path) -> dict[str, tuple[int, str]]:
    """Exit status and answer of each mistake."""
    cluster.job("j000001").wait(_PATIENCE)
    before = {job.id for job in cluster.jobs()}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda mistake: _make(mistake, folder), MISTAKES))
    assert before <= {job.id for job in cluster.jobs()}
    return {mistake.wrong: answer for mistake, answer in zip(MISTAKES, found, strict=True)}


def _make(mistake: Mistake, folder: Path) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLETRAIN_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
        "COLUMNS": "300",
        "TERM": "dumb",
        "XDG_DATA_HOME": str(folder / "data"),
    }
    words = ["sh", "-c", mistake.wrong]
    if mistake.python:
        words = [sys.executable, "-c", f"import threading, malletrain\n{mistake.wrong}"]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=folder, env=environment, timeout=_PATIENCE, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.wrong)
def test_the_answer_says_what_to_do(mistake: Mistake, answers: dict[str, tuple[int, str]]) -> None:
    status, answer = answers[mistake.wrong]
    assert status == mistake.status, answer
    text = " ".join(answer.replace("│", " ").split())
    assert [words for words in mistake.says if words not in text] == [], answer
    assert mistake.python or "Traceback" not in answer


def test_what_is_refused_leaves_nothing(cluster: LocalCluster, answers: dict[str, tuple[int, str]]) -> None:
    known = {job.id for job in cluster.jobs()}
    refused = [mistake for mistake in MISTAKES if mistake.status in (1, 2) and ".result()" not in mistake.wrong]
    started = [mistake for mistake in MISTAKES if mistake not in refused and "submit" in mistake.wrong]
    searched = [mistake for mistake in MISTAKES if "search(" in mistake.wrong]
    assert answers.keys() == {mistake.wrong for mistake in MISTAKES}
    assert len(known) == len(("train", "waiting", "waiting")) + len(started) + len(searched)


def test_there_are_forty_and_each_is_on_the_page_once() -> None:
    assert len(MISTAKES) >= 40
    assert len({mistake.wrong for mistake in MISTAKES}) == len(MISTAKES)
    made = page()
    assert all(mistake.wrong in made and mistake.right in made for mistake in MISTAKES)


def test_a_pipe_in_place_of_a_script_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    assert script_of(["python", "train.py"], tmp_path) == (0, "")
    (tmp_path / "run.py").write_text("print('--max')\n")
    assert script_of(["python", "run.py", "--max", "4"], tmp_path) == (1, "print('--max')\n")
    assert notes_on_script(["python", "run.py", "--max", "4"], (1, "print('--max')\n"), {"--max"}) == []
    (note,) = notes_on_script(["python", "run.py", "--max=4"], (1, "print()\n"), {"--max"})
    assert note == "--max is handed to run.py, which does not mention it: options of malletrain stand before `--`"
