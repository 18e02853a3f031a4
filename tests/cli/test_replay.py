"""`malletrain replay` and `malletrain reproduce` as a user calls them."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from distributed import LocalCluster
from pyarrow import parquet

from malletrain.reproduce.bftrainer.experiments import TABLE_3
from malletrain.scavenger.generate import generate
from malletrain.scavenger.trace_files import write_trace

STABLE = {
    "utilization_efficiency",
    "resource_integral_node_hours",
    "equivalent_nodes",
    "occupied_fraction",
    "samples",
    "preemption_cost_samples",
    "rescale_cost_samples",
    "preempted_jobs",
    "rescales",
    "jobs_completed",
    "events",
    "mean_runtime_hours",
    "wall_seconds",
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "idle.csv.gz"
    write_trace(generate(96, 6 * 3600.0, 0.2, random.Random(7)), path)
    return path


def malletrain(*arguments: object, seed: str = "0") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with its own order of sets."""
    command = [sys.executable, "-m", "malletrain.cli.main", *map(str, arguments)]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_json_has_the_promised_keys_and_the_files_are_the_same_every_time(trace: Path, tmp_path: Path) -> None:
    answers = []
    for seed in ("1", "2"):
        done = malletrain("replay", "--trace", trace, "--json", "--out", tmp_path / seed, seed=seed)
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    first, second = ({key: value for key, value in answer.items() if key != "wall_seconds"} for answer in answers)
    assert answers[0].keys() >= STABLE
    assert first == second
    assert 0.3 < first["utilization_efficiency"] <= first["zero_cost_bound"] < 1.05
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_both_engines_print_the_same_keys_and_nearly_the_same_figures(trace: Path) -> None:
    arguments = ("replay", "--trace", trace, "--hours", 2, "--no-bound", "--json")
    fast, services, again = (
        json.loads(malletrain(*arguments, "--engine", engine, seed=seed).stdout)
        for engine, seed in (("fast", "1"), ("services", "1"), ("services", "2"))
    )
    assert (fast["engine"], services["engine"]) == ("fast", "services")
    assert fast.keys() == services.keys() > STABLE
    assert services["samples"] == pytest.approx(fast["samples"], rel=0.02)
    assert {**services, "wall_seconds": 0} == {**again, "wall_seconds": 0}


def test_tables_hold_every_decision_and_every_job(trace: Path, tmp_path: Path) -> None:
    done = malletrain("replay", "--trace", trace, "--jobs", "imagenet", "--hours", 3, "--out", tmp_path, "--json")
    metrics = json.loads(done.stdout)
    events, jobs = (parquet.read_table(tmp_path / f"{name}.parquet") for name in ("events", "jobs"))
    assert events.num_rows == metrics["decisions"]
    assert sum(events.column("node_event").to_pylist()) == metrics["events"]
    assert sum(jobs.column("samples").to_pylist()) == pytest.approx(metrics["samples"])
    assert sum(ended is not None for ended in jobs.column("ended_s").to_pylist()) == metrics["jobs_completed"]
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 2 * len(list(tmp_path.glob("*.png")))  # for wide and for narrow screens
    assert "http" not in page  # one file, nothing to load


def test_what_idle_nodes_are_worth_is_told_in_the_terminal_in_json_and_on_the_page(trace: Path, tmp_path: Path) -> None:
    rates = ("--rate", 2, "--gpu-rate", 0.5, "--gpus-per-node", 4, "--currency", "EUR", "--no-bound")
    found = json.loads(malletrain("replay", "--trace", trace, *rates, "--json").stdout)
    gain = found["gain"]
    assert gain["idle_share"]["value"] == pytest.approx(found["resource_integral_node_hours"] / (96 * 6))
    assert gain["measured"]["money"]["value"] == pytest.approx(4 * gain["measured"]["node_hours"]["value"])
    assert gain["yearly"] is None  # six hours say nothing about a year
    assert found["cost"]["taken_back"] > 0
    shown = malletrain("replay", "--trace", trace, *rates, "--out", tmp_path)
    for said in (f"{100 * gain['idle_share']['value']:.1f} % of all node-hours were idle", "EUR 2.00 a node-hour"):
        assert said in shown.stdout
        assert said in re.sub("<[^>]*>", "", (tmp_path / "report.html").read_text())


def test_a_measured_delay_is_shown_with_its_source(trace: Path, tmp_path: Path) -> None:
    measured = write(tmp_path / "zero-impact.json", '{"main_jobs": 70, "start_delta_p99_s": 1.81}')
    done = malletrain("replay", "--trace", trace, "--no-bound", "--delays", measured, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out" / "report.html").read_text()
    assert "1.81 s" in page
    assert "70 main jobs of a test with Slurm, zero-impact.json" in page


def test_policies_and_cost_models_differ(trace: Path) -> None:
    found = {}
    for name, options in {
        "milp": [],
        "equal": ["--policy", "equal"],
        "fixed": ["--policy", "fixed", "--fixed-nodes", "4"],
        "paper": ["--cost-model", "paper"],
        "mismatched": ["--cost-model", "paper", "--charge", "stall"],
    }.items():
        done = malletrain("replay", "--trace", trace, "--json", "--no-bound", *options)
        assert done.returncode == 0, done.stderr
        found[name] = json.loads(done.stdout)
    efficiency = {name: entry["utilization_efficiency"] for name, entry in found.items()}
    assert efficiency["milp"] > efficiency["equal"] > efficiency["fixed"]
    assert efficiency["mismatched"] < efficiency["paper"]  # starts are not free, whatever the allocator believes
    assert found["milp"]["zero_cost_bound"] is None


def test_the_built_in_jobs_do_not_run_out(tmp_path: Path) -> None:
    idle = "".join(f"n{number},0,1440000\n" for number in range(100))
    path = write(tmp_path / "idle.csv", f"node,idle_from_s,idle_until_s\n{idle}")
    found = json.loads(malletrain("replay", "--trace", path, "--json").stdout)
    assert found["utilization_efficiency"] > 0.99
    assert found["zero_cost_bound"] == pytest.approx(1.0)
    assert found["jobs_completed"] > 2000
    assert found["queue_empty_hours"] is found["work_ended_hours"] is None


def test_who_runs_out_of_jobs_of_their_own_is_told_when_and_what_u_is_of(tmp_path: Path) -> None:
    """Twenty jobs of an hour on ten nodes, one for each: two hours of work in a week."""
    idle = "".join(f"n{number},0,604800\n" for number in range(10))
    path = write(tmp_path / "idle.csv", f"node,idle_from_s,idle_until_s\n{idle}")
    rows = "".join(f"j{number},net,0,0,0,1,1,36000\n" for number in range(20))
    jobs = write(tmp_path / "jobs.csv", f"{JOBS}{rows}")
    write(tmp_path / "scaling.csv", "model,nodes,samples_per_s\nnet,1,10\n")
    said = malletrain("replay", "--trace", path, "--jobs", jobs, "--out", tmp_path / "out")
    assert said.returncode == 0, said.stderr
    sentence = "No work left from hour 2 of 168 on; U is of the first 2 h, until the queue ran empty."
    assert sentence in said.stdout
    assert sentence in (tmp_path / "out" / "report.html").read_text()
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert (found["queue_empty_hours"], found["work_ended_hours"]) == (2.0, 2.0)
    assert found["utilization_efficiency"] == found["zero_cost_bound"] == 1.0
    assert found["resource_integral_node_hours"] == 1680.0


JOBS = "job,model,submit_s,scale_up_s,scale_down_s,min_nodes,max_nodes,samples\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--forward", "0"], "--forward: expected a finite number above 0"),
        (["--forward", "nan"], "--forward: expected a finite number above 0"),
        (["--nodes", "97"], "--nodes: expected at most 96"),
        (["--hours", "7"], "--hours: expected above 0 and at most 6"),
        (["--hours", "-1"], "--hours: expected a finite number above 0"),
        (["--max-parallel", "0"], "--max-parallel: expected at least 1"),
        (["--commit-seconds", "-1"], "--commit-seconds: expected a finite number, at least 0"),
        (["--rate", "-1"], "--rate: expected a charge for an hour, 0 to 1e+09, got -1"),
        (["--rate", "nan"], "--rate: expected a charge for an hour"),
        (["--gpu-rate", "1"], "--gpu-rate: expected --gpus-per-node beside it"),
        (["--gpus-per-node", "0"], "--gpus-per-node: expected 1 to 1024"),
        (["--currency", "EUR"], "--currency: expected --rate or --gpu-rate beside it"),
        (["--delays", "nowhere.json"], "--delays: expected a file of benchmarks/zero_impact.py"),
        (["--hours", "nan"], "--hours: expected a finite number above 0"),
        (["--window", "0"], "--window: expected 1 to 32"),
        (["--scaling", "x.csv"], "--scaling: expected a job set in a file"),
        (["--jobs", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_wrong_use_is_named(trace: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = malletrain("replay", "--trace", trace, *arguments, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_job_without_a_scaling_row_is_named_with_its_line(trace: Path, tmp_path: Path) -> None:
    jobs = write(tmp_path / "jobs.csv", JOBS + "a,known,0,18,12,1,4,1000\nb,unknown,0,18,12,1,4,1000\n")
    write(tmp_path / "scaling.csv", "model,nodes,samples_per_s\nknown,1,10\n")
    done = malletrain("replay", "--trace", trace, "--jobs", jobs)
    assert done.returncode == 2
    assert f"{jobs}:3: model" in done.stderr


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ("net,1,-5\n", "scaling.csv:2: samples_per_s: expected samples/s, at least 0, got '-5'"),
        ("net,1,0\nnet,2,0\n", "samples_per_s: expected a rate above 0 at one scale at least of model net"),
        ("net,1,nan\n", "scaling.csv:2: samples_per_s: expected samples/s, at least 0, got 'nan'"),
    ],
)
def test_rates_that_no_training_has_are_named(trace: Path, tmp_path: Path, rates: str, message: str) -> None:
    jobs = write(tmp_path / "jobs.csv", JOBS + "a,net,0,18,12,1,2,1000\n")
    write(tmp_path / "scaling.csv", "model,nodes,samples_per_s\n" + rates)
    done = malletrain("replay", "--trace", trace, "--jobs", jobs, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", bytes(range(256)) * 20])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_a_file_that_is_no_trace_is_refused_in_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    done = malletrain("replay", "--trace", path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert str(path) in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_trace_with_a_node_missing_from_its_metadata_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "node,idle_from_s,idle_until_s\nn1,0,10\nn2,5,20\n")
    write(tmp_path / "t.json", '{"nodes": ["n1"], "duration_s": 100}')
    done = malletrain("replay", "--trace", path)
    assert done.returncode == 2
    assert f"{path}:3" in done.stderr
    assert "n2" in done.stderr


def test_nothing_idle_in_the_hours_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "node,idle_from_s,idle_until_s\nn1,7200,7300\n")
    done = malletrain("replay", "--trace", path, "--hours", "1")
    assert done.returncode == 2
    assert "at least one node is idle" in done.stderr


class TestReproduce:
    @pytest.mark.long
    @pytest.mark.timeout(400)  # three books of exhibits, in two ways: 40 s on a quiet machine
    def test_locally_and_on_dask_alike(self, trace: Path, tmp_path: Path) -> None:
        local = malletrain("reproduce", "--trace", trace, "--out", tmp_path / "local", "--workers", 2)
        assert local.returncode == 0, local.stderr
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
            address = cluster.scheduler_address.replace("tcp://", "dask://")
            spread = malletrain("reproduce", "--trace", trace, "--out", tmp_path / "dask", "--executor", address)
        assert spread.returncode == 0, spread.stderr
        ours, theirs = contents(tmp_path / "local"), contents(tmp_path / "dask")
        names = {f"figure-{n}" for n in (1, 5, 6, "7a", "7b", *range(8, 17))} | {"table-1", "table-3", "table-4"}
        assert {Path(name).stem for name in ours} == names | {"report"}
        assert {name for name in ours if ours[name] != theirs[name]} <= {"figure-5.csv", "figure-5.png"}
        page = ours["report.html"].decode()
        assert all(f'id="{name}"' in page for name in names)
        assert page.count("published") > len(TABLE_3)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--executor", "ray"], "--executor: expected local or dask://HOST:PORT"),
            (["--jobs", "hpo", "--jobs", "hpo"], "--jobs: expected one set of one model"),
        ],
    )
    def test_wrong_use_is_named(self, trace: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
        done = malletrain("reproduce", "--trace", trace, "--out", tmp_path, *arguments)
        assert done.returncode == 2
        assert message in done.stderr
