"""Job sets and scaling tables: what is read, and what is refused with file, line and column."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest

from malletrain.model.node_needs import NodeNeeds
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.replay.job_set import read_job_set, read_scaling
from malletrain.simulator.replay.presets import MODELS, PRESETS, ArrivalProcess, preset_jobs
from malletrain.simulator.replay.running_job import speeds
from tests.simulator.replay.builders import trainer

HEAD = "job,model,submit_s,scale_up_s,scale_down_s,min_nodes,max_nodes,samples\n"
ASKING = HEAD.replace("samples", "samples,burst_buffer_gb")
SCALING = "model,nodes,samples_per_s\nnet,0,0\nnet,4,30\nnet,1,10\nother,2,5.5\n"


def files(folder: Path, jobs: str, scaling: str = SCALING) -> tuple[Path, Path]:
    paths = folder / "jobs.csv", folder / "scaling.csv"
    paths[0].write_text(jobs, encoding="utf-8")
    paths[1].write_text(scaling, encoding="utf-8")
    return paths


def test_jobs_come_in_the_order_of_submission_with_their_curves(tmp_path: Path) -> None:
    rows = "a,net,60,18.5,12,1,64,1e6\nb, other ,0,0,0,2,2,5\nc,net,60,1,1,1,4,7\n"
    first, second, third = read_job_set(*files(tmp_path, HEAD + rows))
    assert [first.id, second.id, third.id] == ["b", "a", "c"]
    assert first.curve == (ScalingPoint(2, 5.5),)
    assert second.curve == (ScalingPoint(0, 0.0), ScalingPoint(1, 10.0), ScalingPoint(4, 30.0))
    assert (second.submit_s, second.scale_up_s, second.scale_down_s) == (60.0, 18.5, 12.0)
    assert (second.min_nodes, second.max_nodes, second.samples) == (1, 64, 1e6)


def test_jobs_have_owners_where_the_file_names_them(tmp_path: Path) -> None:
    rows = "a,net,0,0,0,1,64,1e6, ada \nb,net,0,0,0,1,64,1e6,\n"
    first, second = read_job_set(*files(tmp_path, HEAD.replace("\n", ",owner\n") + rows))
    assert [first.owner, second.owner] == ["ada", ""]


NEEDING = HEAD.replace("\n", ",gpu,gpu_memory_mib,constraint,excluded_nodes\n")


def test_jobs_need_what_their_columns_say_of_each_of_their_nodes(tmp_path: Path) -> None:
    rows = "a,net,0,1,1,1,4,9,a100,40960,ib&big,n3 n4\nb,net,1,1,1,1,4,9,,,,\n"
    first, second = read_job_set(*files(tmp_path, NEEDING + rows))
    assert first.needs == NodeNeeds("a100", "ib&big", excluded_nodes=("n3", "n4"), gpu_memory_mib=40960)
    assert not second.needs
    assert not first.free().needs, "for the zero-cost bound any node suits"


@pytest.mark.parametrize(
    ("fields", "where", "what"),
    [
        ("a100,40G,,", "jobs.csv:2: gpu_memory_mib", "40G"),
        ("a100,-1,,", "jobs.csv:2: gpu_memory_mib", "-1"),
        ("a100,1.5,,", "jobs.csv:2: gpu_memory_mib", "1.5"),
        ("a100,2e9,,", "jobs.csv:2: gpu_memory_mib", "MiB"),
        ("a 100,,,", "jobs.csv:2: gpu", "without blanks"),
        (",,ib&big|new,", "jobs.csv:2: constraint", "either by & "),
        (f",,,{'n ' * 300}", "jobs.csv:2: excluded_nodes", "at most 256"),
    ],
)
def test_needs_that_cannot_be_read_are_named(tmp_path: Path, fields: str, where: str, what: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(what)) as caught:
        read_job_set(*files(tmp_path, f"{NEEDING}a,net,0,1,1,1,4,9,{fields}\n"))
    assert caught.value.field.endswith(where)


def test_columns_may_stand_in_any_order_and_others_are_left_alone(tmp_path: Path) -> None:
    names = "samples,note,max_nodes,min_nodes,scale_down_s,scale_up_s,submit_s,model,job\n"
    (job,) = read_job_set(*files(tmp_path, names + "9,hello,3,2,5,4,1,net,a\n"))
    assert (job.id, job.samples, job.max_nodes, job.min_nodes, job.submit_s) == ("a", 9.0, 3, 2, 1.0)


@pytest.mark.parametrize(
    ("jobs", "where", "what"),
    [
        (HEAD + "a,nut,0,1,1,1,4,9\n", "jobs.csv:2: model", "scaling.csv"),
        (HEAD + "a,net,-1,1,1,1,4,9\n", "jobs.csv:2: submit_s", "at least 0"),
        (HEAD + "a,net,0,1,1,1,4,9\nb,net,0,-2,1,1,4,9\n", "jobs.csv:3: scale_up_s", "-2"),
        (HEAD + "a,net,0,1,soon,1,4,9\n", "jobs.csv:2: scale_down_s", "soon"),
        (HEAD + "a,net,0,1,1,0,4,9\n", "jobs.csv:2: min_nodes", "at least 1"),
        (HEAD + "a,net,0,1,1,1.5,4,9\n", "jobs.csv:2: min_nodes", "whole number"),
        (HEAD + "a,net,0,1,1,5,4,9\n", "jobs.csv:2: max_nodes", "at least min_nodes (5)"),
        (HEAD + "a,net,0,1,1,1,inf,9\n", "jobs.csv:2: max_nodes", "whole number"),
        (HEAD + "a,net,0,1,1,1,4,0\n", "jobs.csv:2: samples", "above 0"),
        (HEAD + "a,net,0,1,1,1,4,nan\n", "jobs.csv:2: samples", "above 0"),
        (HEAD + " ,net,0,1,1,1,4,9\n", "jobs.csv:2: job", "a name"),
        (HEAD + "a,net,0,1,1,1,4,9\na,net,0,1,1,1,4,9\n", "jobs.csv:3: job", "line 2 has it too"),
        (HEAD + "a,net,0,1,1,1,4\n", "jobs.csv:2", "8 columns"),
        (HEAD + "a,net,0,1,1,1,4,9,9\n", "jobs.csv:2", "8 columns"),
        (HEAD.replace("samples", "sample"), "jobs.csv:1", "samples is missing"),
        (HEAD + "a,net,0,1,1,99,100,9\n", "jobs.csv:2: min_nodes", "the last scale of net"),
        ("\ufeff" + HEAD, "jobs.csv:2", "at least one job"),  # as spreadsheets save it
        ("", "jobs.csv:1", "job is missing"),
        ('"unfinished\n', "jobs.csv", "CSV"),
        (ASKING + "a,net,0,1,1,1,4,9,-1\n", "jobs.csv:2: burst_buffer_gb", "whole GB"),
        (ASKING + "a,net,0,1,1,1,4,9,0\nb,net,0,1,1,1,4,9,1.5\n", "jobs.csv:3: burst_buffer_gb", "whole GB"),
        (ASKING + "a,net,0,1,1,1,4,9,2TB\n", "jobs.csv:2: burst_buffer_gb", "2TB"),
        (ASKING + "a,net,0,1,1,1,4,9,\n", "jobs.csv:2: burst_buffer_gb", "whole GB"),
        (ASKING + "a,net,0,1,1,1,4,9,1e12\n", "jobs.csv:2: burst_buffer_gb", "1000000000"),
    ],
)
def test_bad_jobs_are_refused(tmp_path: Path, jobs: str, where: str, what: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(what)) as caught:
        read_job_set(*files(tmp_path, jobs))
    assert caught.value.field.endswith(where)


@pytest.mark.parametrize(
    ("scaling", "where", "what"),
    [
        ("", "scaling.csv:1", "model is missing"),
        ("model,nodes\n", "scaling.csv:1", "samples_per_s is missing"),
        ("model,nodes,samples_per_s\nnet,1,-3\n", "scaling.csv:2: samples_per_s", "at least 0"),
        ("model,nodes,samples_per_s\nnet,1.5,3\n", "scaling.csv:2: nodes", "whole number"),
        ("model,nodes,samples_per_s\nnet,-1,3\n", "scaling.csv:2: nodes", "whole number"),
        ("model,nodes,samples_per_s\nnet,0,3\n", "scaling.csv:2: samples_per_s", "0 at 0 nodes"),
        ("model,nodes,samples_per_s\nnet,1,3\nnet,1,4\n", "scaling.csv:3: nodes", "once"),
        ("model,nodes,samples_per_s\n,1,3\n", "scaling.csv:2: model", "a name"),
        ("model,nodes,samples_per_s\nnet,0,0\n", "scaling.csv", "model net"),
    ],
)
def test_bad_scaling_tables_are_refused(tmp_path: Path, scaling: str, where: str, what: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(what)) as caught:
        read_job_set(*files(tmp_path, HEAD + "a,net,0,1,1,1,4,9\n", scaling))
    assert caught.value.field.endswith(where)


def test_files_that_can_not_be_read_are_named(tmp_path: Path) -> None:
    jobs, scaling = files(tmp_path, HEAD)
    with pytest.raises(InvalidInputError, match="readable CSV") as caught:
        read_job_set(tmp_path / "none.csv", scaling)
    assert caught.value.field.endswith("none.csv")
    jobs.write_bytes(b"\xff\xfe\x00garbage")
    with pytest.raises(InvalidInputError, match="readable CSV") as caught:
        read_job_set(jobs, scaling)
    assert caught.value.field.endswith("jobs.csv")
    scaling.write_bytes(b"model,nodes,samples_per_s\nn\x00et,1,\x80\n")
    with pytest.raises(InvalidInputError, match="readable CSV"):
        read_scaling(scaling)


def test_speeds_are_linear_between_the_points_and_none_below_the_minimum() -> None:
    job = trainer(rates=[1.0, 2.0, 4.0], least=2)
    assert speeds(job, 4) == [0.0, 0.0, 2.0, 4.0, 4.0]


def test_costs_may_be_multiplied() -> None:
    job = trainer(up_s=3.0, down_s=2.0).with_costs(1.5)
    assert (job.scale_up_s, job.scale_down_s) == (4.5, 3.0)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_job_sets(name: str) -> None:
    jobs = preset_jobs(name, 15)
    assert len({job.id for job in jobs}) == 15
    assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)
    assert {job.model for job in jobs} == ({"ShuffleNet"} if name == "hpo" else set(MODELS))
    assert all(job.curve[-1].nodes == job.max_nodes for job in jobs)


def test_jobs_of_several_networks_arrive_as_a_poisson_process() -> None:
    times = [job.submit_s for job in preset_jobs("imagenet")]
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(36.0, rel=0.15)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert spread == pytest.approx(mean, rel=0.15), "an exponential distribution's deviation is its mean"
    assert times == [job.submit_s for job in preset_jobs("imagenet")]
    assert times[:15] == [job.submit_s for job in preset_jobs("imagenet", 15)]
    assert times != [job.submit_s for job in preset_jobs("imagenet", seed=1)]


def test_arrivals_may_be_at_fixed_distances() -> None:
    for name, arrivals in (("imagenet", ArrivalProcess.FIXED), ("hpo", None)):
        assert [job.submit_s for job in preset_jobs(name, 3, arrivals)] == [0.0, 36.0, 72.0]
    assert preset_jobs("imagenet", 0) == ()


def test_jobs_may_ask_for_burst_buffer(tmp_path: Path) -> None:
    asking = read_job_set(*files(tmp_path, ASKING + "a,net,0,1,1,1,4,9,2000\nb,net,0,1,1,1,4,9,0\n"))
    assert [job.burst_buffer_gb for job in asking] == [2000, 0]
    assert read_job_set(*files(tmp_path, HEAD + "a,net,0,1,1,1,4,9\n"))[0].burst_buffer_gb == 0
