"""Files with burst buffer and SSD, metrics by hand, recipes, and `malletrain batch` with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.trace_files import read_trace
from malletrain.selection.problem import MachineResources
from malletrain.simulator.batch.generated import WorkloadRecipe, derive
from malletrain.simulator.batch.machine import MachineSpec, parse_ssd
from malletrain.simulator.batch.policies import policy_named
from malletrain.simulator.batch.running import schedule_of
from malletrain.simulator.batch.usage import IdleCauses, kiviat_area, usage_of
from malletrain.simulator.batch.workload import BatchJob, BatchWorkload
from malletrain.simulator.batch.workload_files import read_any_workload, read_jobs, write_jobs
from tests.simulator.batch.test_command import run, write_log
from tests.simulator.batch.windows import large_workload
from tests.simulator.batch.workloads import lublin_like, swf_line, swf_text

HEADER = "job,submit_s,nodes,run_s,estimate_s,burst_buffer_gb,ssd_gb\n"


def table(folder: Path, *rows: str, machine: object = None, header: str = HEADER) -> Path:
    path = folder / "jobs.csv"
    path.write_text(header + "".join(f"{row}\n" for row in rows))
    values = machine or {"nodes": 10, "burst_buffer_gb": 100, "nodes_with_256gb_ssd": 4, "ssd": True}
    path.with_suffix(".json").write_text(json.dumps(values))
    return path


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    workload = large_workload(50, 3, ssd=True)
    write_jobs(workload, tmp_path / "w.csv")
    found = read_any_workload(tmp_path / "w.csv", spec=MachineSpec())
    assert [(job.number, job.submit_s, job.run_s, job.estimate_s, job.request) for job in found.jobs] == [
        (job.number, job.submit_s, job.run_s, job.estimate_s, job.request) for job in workload.jobs
    ]
    assert found.resources == workload.resources


def test_options_override_the_machine_beside_the_table(tmp_path: Path) -> None:
    path = table(tmp_path, "1,0,1,5,5,120,0")
    given = MachineSpec(nodes=12, burst_buffer_gb=200, ssd=parse_ssd("256:6,128:6", "--ssd"))
    assert read_any_workload(path, spec=given).resources == MachineResources(12, 200, 6, 128, 256)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,0,1,5,5,1.5,0", r"jobs.csv:2: burst_buffer_gb: expected a whole number, at least 0, got '1.5'"),
        ("1,0,1,5,5,-3,0", r"jobs.csv:2: burst_buffer_gb: expected a whole number"),
        ("1,0,0,5,5,0,0", r"jobs.csv:2: nodes: expected a whole number, at least 1"),
        ("1,0,1,0,5,0,0", r"jobs.csv:2: run_s: expected seconds above 0"),
        ("1,x,1,5,5,0,0", r"jobs.csv:2: submit_s: expected seconds"),
        ("1,0,1,5,5,101,0", r"jobs.csv:2: burst_buffer_gb: expected at most 100 GB, the machine's burst buffer .*101"),
        ("1,0,11,5,5,0,0", r"jobs.csv:2: nodes: expected at most 10 nodes"),
        ("1,0,5,5,5,0,129", r"jobs.csv:2: nodes: expected at most 4 nodes with more than 128 GB of SSD"),
        ("1,0,1,5,5,0,257", r"jobs.csv:2: ssd_gb: expected at most 256 GB"),
        ("1,0,1,5,5,0", r"jobs.csv:2: expected 7 values, got 6"),
    ],
)
def test_a_job_that_cannot_be_is_refused_with_line_and_column(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_any_workload(table(tmp_path, row), spec=MachineSpec())


def test_two_lines_of_one_job_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"jobs.csv:3: job: expected a number that no earlier line has"):
        read_jobs(table(tmp_path, "1,0,1,5,5,0,0", "1,0,1,5,5,0,0"))


def test_jobs_that_ask_for_too_much_can_be_left_out(tmp_path: Path) -> None:
    path = table(tmp_path, "1,0,1,5,5,101,0", "2,0,1,5,5,100,0")
    found = read_any_workload(path, spec=MachineSpec(), skip_too_large=True)
    assert ([job.number for job in found.jobs], found.skipped.too_large) == ([2], 1)


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        ({"burst_buffer_gb": 100}, "nodes: expected the machine's size"),
        ({"nodes": 10, "burst_buffer_gb": 1.5}, "burst_buffer_gb: expected a whole number"),
        ({"nodes": 10, "ssd": True, "nodes_with_256gb_ssd": 11}, "nodes_with_256gb_ssd: expected at most 10"),
        ({"nodes": 10, "measure_from_s": 5, "measure_until_s": 5}, "a first second from 0 and a later last one"),
        ({"nodes": 10, "measure_from_s": 5}, "both as seconds"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(tmp_path: Path, machine: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_any_workload(table(tmp_path, "1,0,1,5,5,0,0", machine=machine), spec=MachineSpec())


def swf(folder: Path, fields: str, **header: object) -> Path:
    path = folder / "log.swf"
    path.write_text(swf_text([swf_line(1, allocated=2) + fields], MaxNodes=8, **header))
    return path


def test_a_log_with_burst_buffer_and_ssd(tmp_path: Path) -> None:
    path = swf(tmp_path, " 40 200", BurstBuffer=90, LocalSSD="128*6,256*2")
    found = read_any_workload(path, spec=MachineSpec())
    assert found.resources == MachineResources(8, 90, 2, 128, 256)
    assert (found.jobs[0].burst_buffer_gb, found.jobs[0].ssd_gb) == (40, 200)
    unknown = read_any_workload(swf(tmp_path, " -1", BurstBuffer=90), spec=MachineSpec())
    assert unknown.jobs[0].burst_buffer_gb == 0


@pytest.mark.parametrize(
    ("fields", "header", "message"),
    [
        (" 4", {}, r"log.swf:2: expected 18 fields \(this line has 19\); .* BurstBuffer"),
        ("", {"BurstBuffer": 9}, r"log.swf:3: expected 19 fields \(this line has 18\)"),
        (
            " 4",
            {"BurstBuffer": "9, 8"},
            r"log.swf:2: BurstBuffer: expected one burst buffer",
        ),
        (
            " 4 4",
            {"BurstBuffer": "9, 8"},
            r"log.swf:2: BurstBuffer: expected one burst buffer",
        ),
        (" 4", {"BurstBuffer": "9.5"}, r"BurstBuffer: expected .* whole GB"),
        (" 10", {"BurstBuffer": 9}, r"log.swf:3: burst_buffer_gb: expected at most 9 GB"),
        (" 1.5", {"BurstBuffer": 9}, r"log.swf:3: burst buffer: expected whole GB"),
        (" -2", {"BurstBuffer": 9}, r"log.swf:3: burst buffer: expected whole GB"),
        (" 4", {"LocalSSD": "128*4,256*4"}, r"BurstBuffer: expected a total in the header"),
        (
            " 4 4",
            {"BurstBuffer": 9, "LocalSSD": "128*4,256*3"},
            r"log.swf: LocalSSD: expected classes that add up to",
        ),
        (" 4 4", {"BurstBuffer": 9, "LocalSSD": "128*8"}, r"log.swf:3: LocalSSD: expected two classes"),
    ],
)
def test_a_log_that_cannot_be_is_refused(tmp_path: Path, fields: str, header: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_any_workload(swf(tmp_path, fields, **header), spec=MachineSpec())


def test_idle_hours_by_cause_by_hand() -> None:
    # 10 nodes, 10 GB. Job 1 (5 nodes, 8 GB) runs to 3600. Job 2 (4 nodes, 9 GB) lacks only burst buffer until then.
    # Job 3 (8 nodes) comes at 3600 and has too few nodes until 7200, when job 2 ends. Then it runs, nothing waits.
    rows = ((0.0, 5, 3600.0, 8), (0.0, 4, 3600.0, 9), (3600.0, 8, 3600.0, 0))
    jobs = tuple(BatchJob(n, s, size, r, r, 0, gb) for n, (s, size, r, gb) in enumerate(rows, 1))
    workload = BatchWorkload(jobs, 10, resources=MachineResources(10, 10))
    done = schedule_of(workload, policy_named("easy"))[0]
    found = usage_of(done, MachineResources(10, 10), (0.0, 10800.0))
    assert found.idle == IdleCauses(no_job_waiting=2.0, reservation=0.0, burst_buffer=5.0, too_few=6.0)
    assert found.idle.all == pytest.approx(30 - 17)
    assert found.node_usage == pytest.approx(17 / 30)
    assert found.burst_buffer_usage == pytest.approx(17 / 30)


def test_nodes_kept_for_the_head_are_idle_for_its_reservation() -> None:
    # Job 2 wants all 10 nodes at 3600; job 3 would fit on the 5 idle ones, but for two hours.
    rows = ((0.0, 5, 3600.0), (0.0, 10, 3600.0), (0.0, 1, 7200.0))
    jobs = tuple(BatchJob(number, *row, row[2]) for number, row in enumerate(rows, 1))
    done = schedule_of(BatchWorkload(jobs, 10), policy_named("easy"))[0]
    found = usage_of(done, MachineResources(10), (0.0, 3600.0)).idle
    assert found == IdleCauses(no_job_waiting=0.0, reservation=5.0, burst_buffer=0.0, too_few=0.0)


def test_jobs_that_all_come_at_once_are_measured_to_the_last_end() -> None:
    jobs = (BatchJob(1, 0.0, 6, 100.0, 100.0), BatchJob(2, 0.0, 6, 100.0, 100.0))
    done = schedule_of(BatchWorkload(jobs, 10), policy_named("easy"))[0]
    found = usage_of(done, MachineResources(10), None)
    assert (found.node_usage, found.mean_wait_s, found.jobs) == (0.6, 50.0, 2)


def test_seconds_without_a_submission_are_refused_before_anything_runs() -> None:
    with pytest.raises(InvalidInputError, match="measure: expected seconds in which jobs are submitted"):
        BatchWorkload((BatchJob(1, 5.0, 1, 1.0, 1.0),), 10, measured_s=(6.0, 9.0))


def test_a_variant_of_a_log_whose_numbers_repeat_can_be_read(tmp_path: Path) -> None:
    jobs = (BatchJob(3, 0.0, 1, 1.0, 1.0), BatchJob(3, 1.0, 2, 1.0, 1.0))
    write_jobs(BatchWorkload(jobs, 10), tmp_path / "w.csv")
    assert [(job.number, job.nodes) for job in read_jobs(tmp_path / "w.csv")] == [(1, 1), (2, 2)]


def test_a_table_of_a_spreadsheet_with_its_mark_in_front_is_read(tmp_path: Path) -> None:
    path = table(tmp_path, "1,0,1,5,5,0,0")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_jobs(path)) == 1


def test_nodes_given_beside_a_table_count_for_its_ssd_classes(tmp_path: Path) -> None:
    path = table(tmp_path, "1,0,1,5,5,0,0", machine={"ssd": True, "nodes_with_256gb_ssd": 4, "burst_buffer_gb": 1})
    found = read_any_workload(path, spec=MachineSpec(nodes=12))
    assert found.resources == MachineResources(12, 1, 4, 128, 256)


def test_the_area_of_a_kiviat_graph() -> None:
    assert kiviat_area((1.0, 1.0, 1.0, 1.0)) == 1.0
    assert kiviat_area((1.0, 0.0, 1.0, 0.0)) == 0.0
    assert kiviat_area((1.0, 0.5, 1.0, 0.5)) == 0.5


@pytest.mark.parametrize(
    ("recipe", "share", "least"), [("s1", 0.5, 5000), ("s2", 0.75, 5000), ("s3", 0.5, 20000), ("s4", 0.75, 20000)]
)
def test_recipes_of_burst_buffer(recipe: str, share: float, least: int) -> None:
    plain = lublin_like(800, 128, 0.8, 1)
    workload = BatchWorkload(plain.jobs, 128, resources=MachineResources(128, 400_000))
    found = derive(workload, WorkloadRecipe(recipe), 7)
    asking = [job.burst_buffer_gb for job in found.jobs if job.burst_buffer_gb]
    assert abs(len(asking) / 800 - share) < 0.06
    assert least < min(asking)
    assert max(asking) <= 285_000
    assert found == derive(workload, WorkloadRecipe(recipe), 7) != derive(workload, WorkloadRecipe(recipe), 8)


@pytest.mark.parametrize(
    ("recipe", "share"), [(WorkloadRecipe.S5, 0.8), (WorkloadRecipe.S6, 0.5), (WorkloadRecipe.S7, 0.2)]
)
def test_recipes_of_ssd_keep_the_burst_buffer_of_s2(recipe: WorkloadRecipe, share: float) -> None:
    plain = lublin_like(800, 128, 0.8, 1)
    workload = BatchWorkload(plain.jobs, 128, resources=MachineResources(128, 400_000))
    found = derive(workload, recipe, 7)
    s2 = derive(workload, WorkloadRecipe.S2, 7)
    assert [job.burst_buffer_gb for job in found.jobs] == [job.burst_buffer_gb for job in s2.jobs]
    small = [job.ssd_gb <= 128 for job in found.jobs]
    # Jobs that are larger than the 256 GB half count as small ones, whatever the recipe.
    large = sum(job.nodes > 64 for job in plain.jobs) / 800
    assert abs(sum(small) / 800 - (share + (1 - share) * large)) < 0.05
    assert all(job.ssd_gb <= 128 for job in found.jobs if job.nodes > 64)


def test_a_recipe_needs_a_machine_with_burst_buffer() -> None:
    with pytest.raises(InvalidInputError, match="burst_buffer: expected a machine with more than 5000 GB"):
        derive(lublin_like(8, 128, 0.8, 1), WorkloadRecipe.S1, 0)


def test_all_methods_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    write_jobs(large_workload(120, 4), path)
    for folder in ("one", "two"):
        done = run("--workload", path, "--policy", "wfp", "--select", "all", "--out", tmp_path / folder)
        assert done.exit_code == 0
        assert "constrained-bb" in done.stdout
        assert "Kiviat" in done.stdout
    files = sorted(file.relative_to(tmp_path / "one") for file in (tmp_path / "one").rglob("*") if file.is_file())
    assert {str(file) for file in files} >= {"summary.json", "breakdowns.csv", "kiviat.csv", "kiviat.png"}
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)
    assert read_trace(tmp_path / "one" / "bbsched" / "idle.csv.gz").fragments


def test_one_method_tells_its_metrics_and_solve_times(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    write_jobs(large_workload(120, 4), path)
    found = json.loads(run("--workload", path, "--policy", "bbsched", "--json").stdout)
    assert found["select"] == "bbsched"
    assert found["metrics"]["selections"]["worstSolveS"] >= found["metrics"]["selections"]["meanSolveS"] > 0
    shown = run("--workload", path, "--policy", "bbsched").stdout
    assert "only burst buffer lacking" in shown


def test_derive_writes_a_table(tmp_path: Path) -> None:
    path = write_log(tmp_path / "x.swf")
    target = tmp_path / "s1.csv"
    done = run("derive", "--workload", path, "--burst-buffer", 300_000, "--recipe", "s1", "--seed", 3, "--to", target)
    assert done.exit_code == 0
    assert read_any_workload(target, spec=MachineSpec()).resources == MachineResources(4, 300_000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--recipe", "s1"), "--recipe: expected nothing without derive"),
        (("derive", "--recipe", "s1"), "--to: expected a value with derive"),
        (("--trade-off", "-1"), "--trade-off"),
        (("--select", "constrained-ssd"), "constrained-ssd only on a machine with two SSD classes"),
        (("--ssd", "128:2,256:3"), "ssd: expected classes that add up to the 4 nodes"),
        (("--measure", 5, 1), "--measure"),
        (("--policy", "bbsched", "--select", "weighted"), "--select: expected nothing else with --policy bbsched"),
        (("--select", "all", "--schedule", "x.csv"), "--schedule: expected nothing with --select all"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        run("--workload", write_log(tmp_path / "x.swf"), *arguments)


def test_a_window_of_0_is_refused(tmp_path: Path) -> None:
    assert run("--workload", write_log(tmp_path / "x.swf"), "--selection-window", 0).exit_code == 2
