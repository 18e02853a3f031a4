"""FSDP2 under the five services: nodes are taken and returned, a worker is killed, and rank 0's node is wanted back."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.support.waiting import wait_until
from tests.training.live import ROOT, SCALES, change_scales, check_measured, keep, live_training, scales_after

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]

EXAMPLE = ROOT / "examples" / "fsdp2" / "elastic.py"
SECONDS = 150.0
REPLICAS = {
    "import ShardedTraining\n": "import ShardedTraining\nfrom malletrain.client.replicas import replica_mesh\n",
    "    for part in (*model": "    mesh = replica_mesh(device_type=device.type)\n    for part in (*model",
    "fully_shard(part)": "fully_shard(part, mesh=mesh)",
}


def test_the_example_over_1_3_2_1_and_4_nodes_a_kill_and_a_reclaim(tmp_path: Path) -> None:
    with live_training(tmp_path, EXAMPLE, "--epochs", "2", "--step-seconds", "0.1") as training:
        change_scales(training)
        completed = training.wait_completed(SECONDS)
        wait_until(lambda: not training.processes(), 20, "an end without processes")
        found = keep("fsdp2", training)
        check_measured(training)
        accounts = training.accounts()
        logs = "".join(path.read_text() for path in training.folder.glob("logs/*.log"))
    assert accounts.check_epochs() == 2
    assert accounts.samples == int(completed["samples"])
    assert scales_after(found) == (*SCALES[1:], 4, 3)
    # Only the loss of a worker undoes anything: what was trained since the last copy, which the survivors have written.
    undone = {pause.what: pause.repeated for pause in found if pause.repeated}
    assert logs.count("another worker is lost") >= 3
    written = {int(number) for number in re.findall(r"after the loss: (\d+) samples are on disk", logs)}
    after = next(pause for pause in found if pause.what == "kill -9")
    assert after.resumed in written
    assert set(undone) <= {"kill -9"}
    loading = {pause.change for pause in found if pause.loading is not None}
    assert loading == {pause.change for pause in found}, "each generation says how long it loads"
    assert len(accounts.repeated) <= sum(undone.values())
    losses = [batch["loss"] for batch in accounts.batches]
    assert fmean(losses[-30:]) < 3.0 < 5.0 < fmean(losses[:3])
    assert all(later < earlier + 1.0 for earlier, later in itertools.pairwise(losses))


def test_replicas_of_two_nodes_come_and_go_whole_and_a_kill_undoes_no_step(tmp_path: Path) -> None:
    # The lines of docs/bring-your-script.md.
    text = EXAMPLE.read_text()
    for line, with_replicas in REPLICAS.items():
        assert line in text
        text = text.replace(line, with_replicas)
    script = tmp_path / "example.py"
    script.write_text(text)
    arguments = ("--epochs", "2", "--step-seconds", "0.1")
    with live_training(tmp_path, script, *arguments, options=("--nodes-per-replica", "2")) as training:
        training.give("n2")
        training.wait_scale(2)
        training.give("n3")
        # It completes no replica; the next one does.
        training.wait_scale(2)
        training.give("n4")
        training.wait_scale(4)
        training.kill(3)
        training.wait_scale(4)
        said = training.system.command("job", training.job).stdout
        training.reclaim(training.newest(1)["node"])
        training.wait_scale(2)
        completed = training.wait_completed(SECONDS)
        found = keep("replicas", training)
        accounts = training.accounts()
        logs = "".join(path.read_text() for path in training.folder.glob("logs/*.log"))
    assert "2 to 4 nodes, in replicas of 2; 2 of them now" in said
    assert {step["size"] for step in accounts.batches} == {2, 4}, "no partial replica has ever trained"
    assert accounts.check_epochs() == 2
    assert accounts.samples == int(completed["samples"])
    assert logs.count("another worker is lost") >= 2
    assert {pause.what: pause.repeated for pause in found if pause.repeated} == {}, "no step was made twice"
