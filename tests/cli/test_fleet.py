"""`malletrain fleet`: the interface that scripts rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from malletrain.cli.fleet.ensemble_file import read_members
from malletrain.cli.fleet.submitting import member_specs
from malletrain.cli.main import application
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import resources_pb2
from tests.system.deployment import run_command

# Computed by hand: see tests/fleet/test_schedules.py.
PROBLEM: dict[str, Any] = {
    "name": "by hand",
    "gpus": 3,
    "gpusPerNode": 2,
    "samplesPerEpoch": 600,
    "checkpointSeconds": 5,
    "models": [
        {"id": "a", "rates": [60, 110], "epochs": 1},
        {"id": "b", "rates": [30, 60, 90], "epochs": 2},
        {"id": "c", "rates": [10, 20], "epochs": 1},
    ],
}
TOML = """
[fleet]
name = "by hand"
planner = "fleet"
max_nodes = 3
rate_tolerance = 0.67
samples_per_epoch = 600
feed = "data:training_set"
[[model]]
name = "a"
command = ["python", "train.py", "--blocks", "6"]
batch_per_worker = 64
max_epochs = 1
rates = [60.0, 110.0]
[[model]]
name = "b"
max_epochs = 2
rates = [30, 60, 90]
[[model]]
name = "c"
max_epochs = 1
rates = [10, 20]
"""
COMMANDS = "".join(
    line + ('\ncommand = ["train"]\n' if line in ('name = "b"', 'name = "c"') else "\n") for line in TOML.splitlines()
)


def write(folder: Path, content: object, name: str = "problem.json") -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def answer(*arguments: str) -> Any:
    done = CliRunner().invoke(application("fleet"), ["fleet", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def test_plan_prints_the_first_flotilla(tmp_path: Path) -> None:
    assert answer("plan", write(tmp_path, PROBLEM)) == {
        "members": [{"modelId": "a", "gpuIndices": [2]}, {"modelId": "b", "gpuIndices": [0, 1]}],
        "ordersTried": 1,
        "score": 1.5,
        "pace": 60.0,
    }


@pytest.mark.parametrize(("policy", "pace"), [("fleet", 60.0), ("list", 30 * 60 / 185), ("makespan", 30 * 60 / 185)])
def test_the_pace_is_that_of_preprocessing_as_the_planner_shares_it(tmp_path: Path, policy: str, pace: float) -> None:
    models = [{"id": str(rate), "rates": [rate], "epochs": 1} for rate in (100, 55, 30)]
    problem = {**PROBLEM, "models": models, "preprocessRate": 60, "rateTolerance": 100}
    assert answer("plan", write(tmp_path, problem), "--policy", policy)["pace"] == pytest.approx(pace)


def test_simulate_prints_flotillas_and_ends(tmp_path: Path) -> None:
    found = answer("simulate", write(tmp_path, PROBLEM))
    assert found == {
        "seconds": pytest.approx(50.0),
        "flotillas": [
            {
                "members": [{"modelId": "a", "gpuIndices": [2]}, {"modelId": "b", "gpuIndices": [0, 1]}],
                "score": 1.5,
                "startSeconds": 0.0,
                "endSeconds": pytest.approx(10.0),
                "completed": ["a"],
            },
            {
                "members": [{"modelId": "b", "gpuIndices": [2]}, {"modelId": "c", "gpuIndices": [0, 1]}],
                "score": 1.5,
                "startSeconds": pytest.approx(15.0),
                "endSeconds": pytest.approx(45.0),
                "completed": ["b", "c"],
            },
        ],
        "endSeconds": {"a": pytest.approx(10.0), "b": pytest.approx(45.0), "c": pytest.approx(45.0)},
        "waitingGpuSeconds": 0.0,
        "unassignedGpuSeconds": 0.0,
    }


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [("fleet-local", 70), ("list", 60), ("list-in-order", 60), ("rounds", 80), ("sequential", 37.3003), ("auto", 50)],
)
def test_every_policy_says_how_long_it_takes(tmp_path: Path, policy: str, seconds: float) -> None:
    found = answer("simulate", write(tmp_path, PROBLEM), "--policy", policy)
    assert found["seconds"] == pytest.approx(seconds, rel=1e-4)
    assert found["endSeconds"].keys() == {"a", "b", "c"}
    assert ("planner" in found) == (policy == "auto")


def test_independent_jobs_get_whole_nodes(tmp_path: Path) -> None:
    # One node of two GPUs: the third GPU is on a smaller one. Each member trains alone, with a stall at its start.
    found = answer("simulate", write(tmp_path, PROBLEM), "--policy", "milp")
    assert found["seconds"] == pytest.approx(600 / 110 + 1200 / 60 + 600 / 20, abs=3 * 30.0)
    assert found["seconds"] > 600 / 110 + 1200 / 60 + 600 / 20


def test_compare_has_all_of_them_and_the_bound(tmp_path: Path) -> None:
    found = answer("compare", write(tmp_path, PROBLEM))
    assert found["lowerBound"] == pytest.approx(110 / 3)
    assert found["global"]["seconds"] == pytest.approx(50)
    assert found["first"]["pace"] == 60
    assert found["profile"] == {"ma": 6, "mb": 4, "mt": 6, "trainings": 18, "gpuTrainings": 63}
    assert all(isinstance(number, int) for number in found["profile"].values())


def test_a_toml_file_has_its_planner_and_a_share_as_tolerance(tmp_path: Path) -> None:
    file = write(tmp_path, TOML, "ensemble.toml")
    found = answer("plan", file)
    assert [member["modelId"] for member in found["members"]] == ["a", "b"]
    assert "planner" not in found
    assert answer("simulate", file)["flotillas"]
    chosen = answer("plan", write(tmp_path, TOML.replace('"fleet"\n', '"auto"\n'), "auto.toml"))
    assert chosen["planner"] in ("fleet", "makespan", "list")
    assert "shorte" in chosen["reason"]


def test_the_example_in_the_docs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/fleet.md").read_text(encoding="utf-8")
    example = page.partition("```text\n")[2].partition("```")[0]
    found = answer("plan", write(tmp_path, example, "ensemble.toml"))
    assert found["members"][0]["modelId"] == "densenet-121"


def test_fewer_gpus_than_in_the_file(tmp_path: Path) -> None:
    found = answer("plan", write(tmp_path, PROBLEM), "--gpus", "1")
    assert found["members"] == [{"modelId": "a", "gpuIndices": [0]}]
    by_list = answer("plan", write(tmp_path, PROBLEM), "--gpus", "2", "--policy", "list")
    assert [member["modelId"] for member in by_list["members"]] == ["c", "b"]


def test_tables_for_people(tmp_path: Path) -> None:
    file = write(tmp_path, PROBLEM)
    runner = CliRunner()
    assert "2 of 3 members on 3 of 3 GPUs" in runner.invoke(application("fleet"), ["fleet", "plan", file]).stdout
    said = runner.invoke(application("fleet"), ["fleet", "simulate", file, "--policy", "auto"]).stdout
    assert "no schedule is faster than 37 s" in said
    assert "is the shortest" in said
    assert "times the bound" in runner.invoke(application("fleet"), ["fleet", "compare", file]).stdout


def member(index: int, **changes: object) -> dict[str, Any]:
    models = [dict(model) for model in PROBLEM["models"]]
    models[index] |= changes
    return {**PROBLEM, "models": models}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({**PROBLEM, "gpuz": 3}, "gpuz"),
        ({**PROBLEM, "gpus": 0}, "gpus: expected"),
        ({**PROBLEM, "gpus": -4}, "gpus: expected"),
        ({**PROBLEM, "gpus": 2_000_000}, "gpus: expected"),
        ({**PROBLEM, "gpus": 10**12}, "gpus"),
        ({**PROBLEM, "gpus": 2.5}, "gpus"),
        ({**PROBLEM, "gpusPerNode": 0}, "gpus_per_node"),
        ({**PROBLEM, "rateTolerance": -1}, "rate_tolerance"),
        ({**PROBLEM, "rateTolerance": "NaN"}, "rate_tolerance"),
        ({**PROBLEM, "rateTolerance": 5, "rateToleranceShare": 0.1}, "rate_tolerance_share"),
        ({**PROBLEM, "activeShare": 1.5}, "active_share"),
        ({**PROBLEM, "activeShare": "NaN"}, "active_share"),
        ({**PROBLEM, "samplesPerEpoch": 0}, "samples_per_epoch"),
        ({**PROBLEM, "samplesPerEpoch": "Infinity"}, "samples_per_epoch"),
        ({**PROBLEM, "checkpointSeconds": -1}, "checkpoint_seconds"),
        ({**PROBLEM, "preprocessRate": -5}, "preprocess_rate"),
        ({**PROBLEM, "preprocessRate": "Infinity"}, "preprocess_rate"),
        ({**PROBLEM, "pace": "PACE_FAST"}, "pace"),
        ({**PROBLEM, "beyondPeak": 7}, "beyond_peak"),
        ({**PROBLEM, "models": []}, "models: expected at least one member"),
        (member(1, id="a"), "models[1].id: expected each member once"),
        (member(1, id=" "), "models[1].id"),
        (member(2, rates=[]), "models[2].rates"),
        (member(2, rates=[10, 0]), "models[2].rates[1]"),
        (member(2, rates=[-1]), "models[2].rates[0]"),
        (member(2, rates=["NaN"]), "models[2].rates[0]"),
        (member(2, rates=[1e300]), "models[2].rates[0]"),
        (member(0, epochs=0), "models[0].epochs"),
        ({**member(0, rates=[1, 0.001]), "gpus": 2000, "beyondPeak": "BEYOND_PEAK_ALLOW"}, "models[0].rates"),
        ("{", "JSON"),
        ("[]", "a FleetProblem as a JSON object"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "simulate"])
def test_a_wrong_file_is_refused_with_file_and_field(tmp_path: Path, verb: str, content: object, expected: str) -> None:
    file = write(tmp_path, content)
    done = CliRunner().invoke(application("fleet"), ["fleet", verb, file, "--json"])
    assert isinstance(done.exception, InvalidInputError)
    assert done.stdout == ""
    assert file in str(done.exception)
    assert expected in str(done.exception)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("max_nodes = 3", "", "fleet.max_nodes: expected a value, got 'none'"),
        ("max_nodes = 3", "max_nodes = 0", "fleet.max_nodes"),
        ("max_nodes = 3", "max_nodes = 3\nmax_node = 3", "fleet.max_node"),
        ("max_nodes = 3", "max_nodes = 1000000000", "fleet.max_nodes: expected 1 to 100000 GPUs"),
        ("rate_tolerance = 0.67", "rate_tolerance = nan", "fleet.rate_tolerance"),
        (
            'planner = "fleet"',
            'planner = "fast"',
            "fleet.planner: expected 'auto', 'fleet', 'makespan', 'list' or 'milp'",
        ),
        ('planner = "fleet"', 'planner = "autos"', "fleet.planner: expected 'auto',"),
        ('planner = "fleet"', 'planner = "milp"', "fleet.planner: expected auto, fleet, makespan, list"),
        ("max_nodes = 3", 'max_nodes = 3\npace = "fast"', "fleet.pace: expected 'lockstep' or 'own'"),
        ("max_nodes = 3", 'max_nodes = 3\nbeyond_peak = "no"', "fleet.beyond_peak: expected 'avoid' or 'allow'"),
        ("data:training_set", "not a spec !!", "fleet.feed: expected MODULE:FUNCTION"),
        ("data:training_set", "data", "fleet.feed: expected MODULE:FUNCTION"),
        ("data:training_set", "data:training_set\\n", "fleet.feed: expected MODULE:FUNCTION"),
        ('"--blocks", "6"', '"--blocks", ""', "model[0].command[3]: expected a word that is not empty"),
        ('name = "b"', 'name = "\\u001b[2Jb"', "model[1].name: expected a name of printable characters"),
        ('name = "b"', 'name = "a"', "model[1].name: expected each member once"),
        ("max_epochs = 2", "max_epochs = 0", "model[1].max_epochs"),
        ("rates = [30, 60, 90]", "", "model[1].rates"),
        ("rates = [30, 60, 90]", "rates = [30, inf]", "model[1].rates[1]"),
        ("rates = [30, 60, 90]", 'rates = "fast"', "model[1].rates"),
        ("[fleet]", "[fleet", "TOML"),
    ],
)
def test_a_wrong_toml_file_is_refused_with_its_own_names(tmp_path: Path, old: str, new: str, expected: str) -> None:
    file = write(tmp_path, TOML.replace(old, new), "ensemble.toml")
    done = CliRunner().invoke(application("fleet"), ["fleet", "plan", file])
    assert isinstance(done.exception, InvalidInputError)
    assert str(done.exception).startswith(f"{file}: ")
    assert expected in str(done.exception)


def test_wrong_use_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    file = write(tmp_path, PROBLEM)
    for arguments, expected in (
        (("plan", file, "--gpus", "4"), "--gpus: expected at most 3"),
        (("plan", file, "--policy", "rounds"), "--policy"),
        (("plan", "nowhere.json"), "nowhere.json"),
        (
            ("simulate", write(tmp_path, {**PROBLEM, "preprocessRate": 9}, "p.json"), "--policy", "milp"),
            "preprocess_rate",
        ),
    ):
        done = run_command("fleet", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stdout == ""
        assert expected in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_extremes_end_soon(tmp_path: Path) -> None:
    slow = {**PROBLEM, "preprocessRate": 1e-9, "samplesPerEpoch": 1e12, "checkpointSeconds": 1e12}
    assert answer("simulate", write(tmp_path, slow), "--policy", "makespan")["seconds"] > 1e20
    alone = {**PROBLEM, "gpus": 1, "gpusPerNode": 8, "activeShare": 0}
    assert len(answer("simulate", write(tmp_path, alone))["flotillas"]) == 3
    many = {**PROBLEM, "gpus": 20_000, "gpusPerNode": 8}
    assert answer("simulate", write(tmp_path, many))["seconds"] > 0


def members(folder: Path, text: str, **options: Any) -> list[Any]:
    return member_specs(read_members(Path(write(folder, text, "members.toml"))), folder, **options)


def test_members_become_jobs_whose_scale_counts_gpus(tmp_path: Path) -> None:
    text = COMMANDS.replace("rates = [10, 20]\n", "").replace(
        "max_nodes = 3\n", "max_nodes = 3\ncheckpoint_seconds = 34.5\n"
    )
    specs = members(tmp_path, text)
    assert [spec.name for spec in specs] == ["a", "b", "c"]
    assert {spec.fleet.SerializeToString() for spec in specs} == {specs[0].fleet.SerializeToString()}
    assert (specs[0].fleet.name, specs[0].fleet.max_nodes, specs[0].fleet.rate_tolerance) == ("by hand", 3, 0.67)
    assert [spec.target_samples for spec in specs] == [600, 1200, 600]
    assert [spec.slots_per_node for spec in specs] == [1, 1, 1]
    first, _, unknown = specs
    assert [(point.nodes, round(point.rate)) for point in first.curve] == [(1, 60), (2, 110), (3, 151)]
    assert (first.max_nodes, first.profile) == (3, resources_pb2.PROFILE_MODE_NEVER)
    assert (len(unknown.curve), unknown.max_nodes, unknown.profile) == (0, 3, resources_pb2.PROFILE_MODE_AUTO)
    assert first.environment == {"MALLETRAIN_FEED": "data:training_set", "MALLETRAIN_BATCH_PER_WORKER": "64"}
    assert unknown.environment == {"MALLETRAIN_FEED": "data:training_set"}, "its script says how large its batches are"
    assert first.fleet.checkpoint_seconds == 34.5


def test_members_need_what_the_fleet_needs(tmp_path: Path) -> None:
    needs = '[fleet.needs]\ngpu = "a100"\ngpu-memory = "40G"\ncores = 8\nconstraint = "ib"\nexclude = ["n7"]\n'
    specs = members(tmp_path, COMMANDS.replace("[[model]]", f"{needs}[[model]]", 1))
    expected = resources_pb2.NodeNeeds(
        gpu="a100", gpu_memory_mib=40960, cores=8, constraint="ib", excluded_nodes=["n7"]
    )
    assert [spec.needs for spec in specs] == [expected] * 3
    assert not members(tmp_path, COMMANDS)[0].HasField("needs")
    for wrong, field in (
        ('gpu-memory = "much"', "gpu-memory"),
        ("cores = 0", "cores"),
        ("gpu_memory = 1", "gpu_memory"),
    ):
        with pytest.raises(InvalidInputError, match=rf"fleet\.needs\.{field}"):
            members(tmp_path, COMMANDS.replace("[[model]]", f"[fleet.needs]\n{wrong}\n[[model]]", 1))


def test_a_curve_ends_at_the_peak(tmp_path: Path) -> None:
    (first, *_) = members(tmp_path, COMMANDS.replace("rates = [60.0, 110.0]", "rates = [60.0, 61.0]"))
    assert [point.nodes for point in first.curve] == [1, 2]
    assert first.max_nodes == 2


def test_without_a_feed_members_are_told_so(tmp_path: Path) -> None:
    without = members(tmp_path, COMMANDS, with_feed=False)[1]
    assert without.environment == {"MALLETRAIN_FEED": ""}
    assert (without.fleet.HasField("feed"), without.fleet.feed) == (True, "")
    unsaid = members(tmp_path, COMMANDS.replace('feed = "data:training_set"\n', ""))[1]
    assert unsaid.environment == {}
    assert not unsaid.fleet.HasField("feed")
    assert members(tmp_path, COMMANDS)[1].fleet.feed == "data:training_set"


def test_feeds_of_a_fleet_share_across_nodes_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    text = COMMANDS.replace("max_nodes = 3\n", "max_nodes = 3\nfeed_across_nodes = false\n")
    apart = members(tmp_path, text)[1]
    assert apart.environment == {"MALLETRAIN_FEED": "data:training_set", "MALLETRAIN_FEED_ACROSS_NODES": "0"}
    assert members(tmp_path, text, with_feed=False)[1].environment == {"MALLETRAIN_FEED": ""}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('command = ["python", "train.py", "--blocks", "6"]\n', "", "model[0].command: expected a program"),
        ('name = "b"', 'name = "\\u001b[2Jb"', "model[1].name: expected a name of printable characters"),
        ('name = "b"', 'name = "a"', "model[1].name: expected each member once"),
        ("rates = [60.0, 110.0]", "rates = [60.0, 0.0]", "model[0].rates[1]: expected samples/s"),
        ('feed = "data:training_set"', 'feed = "data"', "fleet.feed: expected MODULE:FUNCTION"),
        ("max_nodes = 3", "max_nodes = 0", "fleet.max_nodes"),
    ],
)
def test_what_is_submitted_is_checked_first(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in COMMANDS
    with pytest.raises(InvalidInputError) as raised:
        members(tmp_path, COMMANDS.replace(old, new))
    assert expected in str(raised.value)


def test_only_a_file_with_commands_can_be_submitted(tmp_path: Path) -> None:
    done = run_command("fleet", "submit", write(tmp_path, PROBLEM), cwd=tmp_path)
    assert done.returncode == 2
    assert "expected a file NAME.toml, with a command for each member" in done.stderr


def test_files_that_are_planned_need_rates(tmp_path: Path) -> None:
    path = write(tmp_path, TOML.replace("rates = [10, 20]\n", ""), "ensemble.toml")
    with pytest.raises(InvalidInputError, match=r"model\[2\]\.rates: expected samples/s"):
        answer("plan", path)
