"""What is wrong with a job is said by the name of its field."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from malletrain.common.job_limits import JobLimits
from malletrain.job_manager import wire
from malletrain.job_manager.settings import LongestGraces
from malletrain.job_manager.storage.store import decode, encode
from malletrain.job_manager.submission import MAX_SPECS, check_command, check_specs, digest
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.job_value_messages import value_from_proto, value_to_proto
from malletrain.runtime.job_values import parse_value
from malletrain.v1 import resources_pb2
from tests.support.builders import job, job_spec, spec_message

PATH = os.defpath
HOROVOD = resources_pb2.LAUNCHER_BACKEND_HOROVOD
GRACES = LongestGraces(release=120.0)


def points(*pairs: tuple[int, float]) -> list[resources_pb2.ScalingPoint]:
    return [resources_pb2.ScalingPoint(nodes=nodes, rate=rate) for nodes, rate in pairs]


def replicas(nodes: int, **changes: Any) -> dict[str, Any]:
    torchrun = resources_pb2.LAUNCHER_BACKEND_TORCHRUN
    return {"nodes_per_replica": nodes, "min_nodes": 2, "max_nodes": 4, "backend": torchrun, **changes}


def points_value(*pairs: tuple[float, float]) -> resources_pb2.JobValue:
    found = [resources_pb2.ValuePoint(speedup=speedup, value=value) for speedup, value in pairs]
    return resources_pb2.JobValue(points=resources_pb2.ValuePoints(points=found))


def limits(**seconds: float) -> dict[str, Any]:
    return {"limits": resources_pb2.JobLimits(**seconds)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": " "}, "name: expected 1 to 128 printable characters"),
        ({"name": "x" * 129}, "name: expected 1 to 128 printable characters"),
        ({"name": "two\nlines"}, "name: expected 1 to 128 printable characters"),
        ({"command": []}, "command: expected a program and its arguments"),
        ({"command": ["no-such-program"]}, "command[0]: expected a path, or a program that is on the services' PATH"),
        ({"command": ["/no/such/program"]}, "command[0]: expected an executable file, got"),
        (
            {"command": ["train.py"]},
            "command[0]: expected a path, or a program that is on the services' PATH, or `python",
        ),
        (
            {"command": ["./train.py"]},
            "command[0]: expected an executable file, or `python ./train.py`, got './train.py'",
        ),
        ({"command": ["python3", "-u", "none.py"]}, "command[2]: expected an existing script"),
        ({"command": ["true", "a\0b"]}, "command[1]: expected text without zero bytes"),
        ({"working_directory": "here"}, "working_directory: expected an absolute path"),
        ({"working_directory": "/no/such/folder"}, "working_directory: expected an existing directory"),
        ({"environment": {"A-B": "1"}}, "environment['A-B']: expected a name of letters"),
        ({"environment": {"MALLETRAIN_NODE": "x"}}, "environment['MALLETRAIN_NODE']: expected a name that does not"),
        ({"min_nodes": 0}, "min_nodes: expected 1 to 1000000, got 0"),
        ({"min_nodes": -1}, "min_nodes: expected 1 to 1000000, got -1"),
        ({"min_nodes": 9}, "min_nodes: expected at most max_nodes (4), got 9"),
        ({"max_nodes": 0}, "max_nodes: expected 1 to 1000000, got 0"),
        ({"permitted_nodes": [2, 2]}, "permitted_nodes[1]: expected above the entry before (2), got 2"),
        ({"permitted_nodes": [2, 5]}, "permitted_nodes[1]: expected 1 to 4, the job's bounds, got 5"),
        (replicas(-1), "nodes_per_replica: expected 1 to 1000000, got -1"),
        (replicas(2, min_nodes=1), "min_nodes: expected a multiple of nodes_per_replica (2), got 1"),
        (replicas(2, max_nodes=3), "max_nodes: expected a multiple of nodes_per_replica (2), got 3"),
        (
            replicas(2, permitted_nodes=[2, 3]),
            "permitted_nodes[1]: expected a multiple of nodes_per_replica (2), got 3",
        ),
        (replicas(2, max_nodes=2000), "max_nodes: expected at most 1024, or 512 permitted_nodes, got 2000"),
        (
            replicas(2, backend=HOROVOD),
            "backend: expected torchrun or command, as nodes_per_replica says, got 'horovod'",
        ),
        (replicas(2, backend=0), "backend: expected torchrun or command, as nodes_per_replica says"),
        ({"slots_per_node": -1}, "slots_per_node: expected 1 to 1024"),
        (
            {"scale_up_seconds": -1.0},
            "scale_up_seconds: expected a finite number, at least 0 and at most 2.592e+06, got -1.0",
        ),
        ({"scale_down_seconds": float("nan")}, "scale_down_seconds: expected a finite number"),
        *(
            ({"weight": weight}, "weight: expected 0.000001 to 1000000 (0 means 1), got")
            for weight in (-1.0, 5e-324, 9e-7, 1.1e6, 1.7e308, float("inf"), float("nan"))
        ),
        ({"value": points_value((1e-320, 1e6))}, "value.points[0].speedup: expected 0.001 to 1e+06, got 1e-320"),
        ({"target_samples": -1}, "target_samples: expected at least 0"),
        ({"max_restarts": -1}, "max_restarts: expected at least 0"),
        ({"curve": points((1, 1.0), (1, 2.0))}, "curve[1].nodes: expected above the point before (1), got 1"),
        ({"curve": points((2, 1.0), (1, 2.0))}, "curve[1].nodes: expected above the point before (2), got 1"),
        ({"curve": points((1, float("inf")))}, "curve[0].rate: expected a finite number"),
        ({"curve": points((1, 1e200))}, "curve[0].rate: expected a finite number, at least 0 and at most 1e+15, got"),
        ({"scale_up_seconds": 1e300}, "scale_up_seconds: expected a finite number, at least 0 and at most 2.592e+06"),
        ({"curve": points((1, 1e-310))}, "curve[0].rate: expected 0, or at least 1e-09 samples/s, got 1e-310"),
        ({"curve": points((-1, 1.0))}, "curve[0].nodes: expected at least 0"),
        ({"curve": points((0, 1.0))}, "curve[0].rate: expected 0"),
        ({"burst_buffer_gb": 1}, "burst_buffer_gb: expected 0, since no burst buffer is granted"),
        (limits(step_seconds=-1.0), "limits.step_seconds: expected 0 to 2.592e+06 seconds, 30 days"),
        (limits(save_seconds=float("nan")), "limits.save_seconds: expected 0 to 2.592e+06 seconds"),
        (limits(evaluation_seconds=float("inf")), "limits.evaluation_seconds: expected 0 to 2.592e+06 seconds"),
        (limits(start_seconds=2_592_001.0), "limits.start_seconds: expected 0 to 2.592e+06 seconds"),
        (
            limits(release_grace_seconds=30.5),
            "limits.release_grace_seconds: expected 0 to 30 seconds, the operator's bound "
            "(job_manager.longest_release_grace_seconds); 0 for the default, got 30.5",
        ),
        (limits(release_grace_seconds=-1.0), "limits.release_grace_seconds: expected 0 to 30 seconds"),
        (
            limits(leave_grace_seconds=601.0),
            "limits.leave_grace_seconds: expected 0 to 600 seconds, the operator's bound "
            "(job_manager.longest_leave_grace_seconds)",
        ),
        ({"launch_note": "x" * 513}, "launch_note: expected at most 512 printable characters"),
        ({"launch_note": "two\nlines"}, "launch_note: expected at most 512 printable characters"),
        ({"burst_buffer_gb": -1}, "burst_buffer_gb: expected 0, since no burst buffer is granted"),
    ],
)
def test_bad_fields_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_specs([spec_message(), spec_message(**changes)], PATH)
    assert str(caught.value).startswith(f"specs[1].{message}")


@pytest.mark.parametrize("count", [0, MAX_SPECS + 1])
def test_too_few_and_too_many_jobs(count: int) -> None:
    with pytest.raises(InvalidInputError, match=f"specs: expected 1 to {MAX_SPECS} jobs, got {count}"):
        check_specs([spec_message()] * count, PATH)


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (spec,) = check_specs([spec_message("python3", "train.py", "x", working_directory=str(tmp_path))], PATH)
    assert (spec.slots_per_node, spec.weight, spec.max_restarts) == (0, 1.0, 3)
    assert (spec.scale_up_seconds, spec.scale_down_seconds, spec.curve) == (None, None, ())
    (spec,) = check_specs([spec_message(max_restarts=0, scale_up_seconds=0.0)], PATH)
    assert (spec.max_restarts, spec.scale_up_seconds) == (0, 0.0)


def test_limits_hold_as_submitted_and_the_operator_bounds_what_delays_nodes() -> None:
    (spec,) = check_specs(
        [spec_message(**limits(evaluation_seconds=7200.0, release_grace_seconds=90.0))], PATH, 0, GRACES
    )
    assert spec.limits == JobLimits(evaluation_seconds=7200.0, release_grace_seconds=90.0)
    assert (spec.limits.step, spec.limits.evaluation, spec.limits.leave_grace) == (1800.0, 7200.0, 60.0)
    assert decode(encode(submitted := job(spec=spec))) == submitted
    assert wire.spec_message(spec).limits.evaluation_seconds == 7200.0
    (plain,) = check_specs([spec_message()], PATH)
    assert not wire.spec_message(plain).HasField("limits")


def test_users_may_say_what_a_feed_prepares_where_it_is_found_and_the_batch_of_a_worker() -> None:
    variables = {"MALLETRAIN_FEED": "", "MALLETRAIN_FEED_FOLDER": "/run/feeds", "MALLETRAIN_BATCH_PER_WORKER": "8"}
    (spec,) = check_specs([spec_message(environment=variables)], PATH)
    assert dict(spec.environment) == variables


def test_users_may_name_trackers_that_are_known() -> None:
    (spec,) = check_specs([spec_message(environment={"MALLETRAIN_TRACKERS": "wandb,mlflow"})], PATH)
    assert spec.environment["MALLETRAIN_TRACKERS"] == "wandb,mlflow"
    with pytest.raises(InvalidInputError, match=r"MALLETRAIN_TRACKERS.*, separated by commas, got 'neptune'"):
        check_specs([spec_message(environment={"MALLETRAIN_TRACKERS": "neptune"})], PATH)


@pytest.mark.parametrize(
    ("command", "index"),
    [("python -u -W ignore train.py -m x", 4), ("python -Eu train.py", 2), ("python -- train.py", 2)],
)
def test_a_missing_script_is_named_by_its_place_in_the_command(tmp_path: Path, command: str, index: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"job\.command\[{index}\]: expected an existing script"):
        check_command("job", command.split(), str(tmp_path), os.environ["PATH"])
    (tmp_path / "train.py").touch()
    check_command("job", command.split(), str(tmp_path), os.environ["PATH"])


@pytest.mark.parametrize("command", ["python -mpkg a", "python -m pkg", "python -c pass", "python", "sh train.sh"])
def test_commands_without_a_script_name_no_missing_one(tmp_path: Path, command: str) -> None:
    check_command("job", command.split(), str(tmp_path), os.environ["PATH"])


def test_digests_tell_submissions_apart() -> None:
    one, two = spec_message(environment={"A": "1", "B": "2"}), spec_message(environment={"B": "2", "A": "1"})
    assert digest([one]) == digest([two])
    assert digest([one]) != digest([one, one]) != digest([spec_message()])


def test_a_spec_that_would_fill_the_messages_to_all_services_is_refused() -> None:
    spec = resources_pb2.JobSpec(name="x", environment={"BIG": "x" * 200_000})
    with pytest.raises(InvalidInputError, match=r"specs\[0\]: expected at most 131072 bytes in all"):
        check_specs([spec], "/bin")


@pytest.mark.parametrize("asked", [-1, 4001, 2**63 - 1])
def test_burst_buffer_is_asked_for_within_the_quota(asked: int) -> None:
    (most,) = check_specs([spec_message(burst_buffer_gb=4000)], PATH, 4000)
    assert most.burst_buffer_gb == 4000
    with pytest.raises(InvalidInputError) as caught:
        check_specs([spec_message(), spec_message(burst_buffer_gb=asked)], PATH, 4000)
    assert str(caught.value) == (
        f"specs[1].burst_buffer_gb: expected 0 to 4000 GB, the quota (job_manager.burst_buffer_gb), got {asked}"
    )


@pytest.mark.parametrize(("permitted", "expected"), [([], (2, 4, 6, 8)), ([4, 8], (4, 8))])
def test_the_scales_of_a_divided_model_are_whole_replicas(permitted: list[int], expected: tuple[int, ...]) -> None:
    (spec,) = check_specs([spec_message(**replicas(2, max_nodes=8, permitted_nodes=permitted))], PATH, 0, GRACES)
    assert (spec.permitted_nodes, spec.nodes_per_replica) == (expected, 2)
    assert wire.spec_message(spec).nodes_per_replica == 2


@pytest.mark.parametrize(
    "text", ["linear", "diminishing=0.5", "points=1:1,4:3", "deadline=24h", "deadline=1790000000:8"]
)
def test_values_are_kept_as_submitted(text: str) -> None:
    submitted = spec_message(target_samples=9, value=value_to_proto(parse_value(text)))
    (spec,) = check_specs([submitted], PATH, 0, GRACES)
    assert spec.value == parse_value(text)
    assert value_from_proto(wire.spec_message(spec)) == spec.value
    assert decode(encode(job(spec=spec))).spec.value == spec.value


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (resources_pb2.JobValue(exponent=0.0), "value.exponent"),
        (resources_pb2.JobValue(exponent=float("nan")), "value.exponent"),
        (resources_pb2.JobValue(points=resources_pb2.ValuePoints()), "value.points"),
        (resources_pb2.JobValue(deadline=resources_pb2.Deadline(unix_seconds=-1.0, urgency=2.0)), "value.deadline"),
        (resources_pb2.JobValue(deadline=resources_pb2.Deadline(unix_seconds=9.0)), "value.deadline.urgency"),
    ],
)
def test_values_of_hostile_messages_are_refused(value: resources_pb2.JobValue, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_specs([spec_message(value=value, target_samples=5)], PATH)
    assert caught.value.field == f"specs[0].{field}"


def test_a_deadline_needs_a_target() -> None:
    deadline = resources_pb2.JobValue(deadline=resources_pb2.Deadline(seconds_after_submission=60.0, urgency=2.0))
    with pytest.raises(InvalidInputError, match=r"specs\[0\]\.value\.deadline: expected target_samples beside it"):
        check_specs([spec_message(value=deadline)], PATH)


def test_urgent_jobs_are_worth_no_more_to_their_owner_in_all() -> None:
    urgent = replace(job_spec(weight=2.0), value=parse_value("deadline=1h:8"))
    assert (urgent.most_weight, job_spec(weight=2.0).most_weight) == (16.0, 2.0)
