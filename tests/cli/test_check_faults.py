"""`malletrain check` on real scripts: it names the known fault of each, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.common.environment import JOB_DIR
from malletrain.common.processes import find_processes
from tests.cli.check_scripts.train import FAULTS
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faulty_scripts, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("check_scripts") / "train.py"
UNDER_HOROVOD = SCRIPT.with_name("horovod_train.py")
FAULTS_UNDER_HOROVOD = ("none", "learning_rate", "loader_not_resumed", "same_samples", "save_blocks")
QUICK = {"hangs": "60"}
"""Longest boot in seconds, where waiting for it is what is tested."""


def command(fault: str, *options: str, script: Path = SCRIPT) -> list[str]:
    limits = ["--boot-limit", QUICK.get(fault, "240"), "--time-limit", "580", "--json"]
    words = ["python", str(script), "--fault", fault]
    return [sys.executable, "-m", "malletrain.cli.main", "check", *limits, *options, "--", *words]


def processes_below(folder: Path) -> list[int]:
    """Processes of jobs in a folder."""
    return [found.id.pid for found in find_processes(lambda found: found.get(JOB_DIR, "").startswith(str(folder)))]


@pytest.mark.parametrize("fault", FAULTS)
def test_it_names_the_fault_and_nothing_else(tmp_path: Path, fault: str) -> None:
    check(command(fault), tmp_path, fault)


@pytest.mark.parametrize("fault", FAULTS_UNDER_HOROVOD)
def test_it_names_the_fault_and_nothing_else_under_horovod(tmp_path: Path, fault: str) -> None:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    found = check(command(fault, script=UNDER_HOROVOD), tmp_path, fault)
    assert [verdict["backend"] for verdict in found["backends"]] == ["horovod"]


def test_what_a_wrapper_starts_is_looked_into(tmp_path: Path) -> None:
    wrapper = tmp_path / "run.sh"
    wrapper.write_text(f'#!/bin/sh\nexport A=1\nexec {sys.executable} {SCRIPT} "$@"\n')
    words = command("saves_in_place")
    found = check(
        [*words[: words.index("--") + 1], "bash", "run.sh", "--fault", "saves_in_place"], tmp_path, "saves_in_place"
    )
    assert [verdict["backend"] for verdict in found["backends"]] == ["torchrun"]


PLAIN = """
import os, sys, time
from pathlib import Path
import torch
from malletrain.client import install_signal_handler, report, should_stop

install_signal_handler()
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
path = Path(os.environ["MALLETRAIN_JOB_DIR"], "checkpoints", "state.pt")
step = 0
if path.exists():
    state = torch.load(path)
    model.load_state_dict(state["model"])
    step = state["step"]
while not should_stop():
    inputs = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    step += 1
    report(8, position=8 * step)
    time.sleep(0.02)
torch.save({"model": model.state_dict(), "step": step}, path.with_suffix(".new"))
path.with_suffix(".new").replace(path)
os._exit(0)  # at once: the last reports may be on their way
"""


def test_a_script_of_one_process_is_tried_as_a_command(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    words = command("none")
    found = check([*words[: words.index("--") + 1], sys.executable, "plain.py"], tmp_path, "none")
    (verdict,) = found["backends"]
    assert verdict["backend"] == "command"
    assert verdict["answers"]["resumes"] == "yes"
    assert "single process" in verdict["answers"]["runs as"]
    assert verdict["answers"]["goes on with the next sample"] == "yes"


def check(words: list[str], folder: Path, fault: str) -> dict[str, Any]:
    """Check a script, which has this fault and no other."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    assert "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    wanted = [] if fault == "none" else [fault]
    assert [finding["code"] for finding in found["findings"]] == wanted, done.stdout
    assert done.returncode == len(wanted)
    assert all(finding["change"] for finding in found["findings"])
    return found


def test_ctrl_c_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    checking = subprocess.Popen(
        command("hangs", "--boot-limit", "400"),
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(processes_below(temporary)) >= 2, 300, "supervisor and worker")
        checking.send_signal(signal.SIGINT)
        assert checking.wait(60) == 130
    finally:
        checking.kill()
        checking.wait()
    assert processes_below(temporary) == []
    assert list(temporary.glob("malletrain*")) == []


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("python", "missing.py"), "a script that exists"),
        (("train.py",), "or `python train.py`, got 'train.py'"),
        (("no-such-program",), "a program that is on PATH, or an executable file, got"),
    ],
)
def test_a_command_that_is_not_there_is_no_finding(tmp_path: Path, command: tuple[str, ...], expected: str) -> None:
    (tmp_path / "train.py").write_text("")
    words = [sys.executable, "-m", "malletrain.cli.main", "check", "--", *command]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert expected in done.stderr
