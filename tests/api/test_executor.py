"""Functions as jobs on real services: results, errors, classes of the caller, cancelling, limits, submitit's README."""

from __future__ import annotations

import asyncio
import concurrent.futures
import operator
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import malletrain
from malletrain import Executor, LocalCluster
from malletrain.api.executor import FunctionTracebackError
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

PATIENCE = 100.0
README = """
import submitit

def add(a, b):
    return a + b

executor = submitit.AutoExecutor(folder="log_test")
executor.update_parameters(timeout_min=1, slurm_partition="dev")
job = executor.submit(add, 5, 7)
print(job.job_id)

output = job.result()
assert output == 12
"""
"""The example of submitit's README."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with malletrain.local(nodes=3, settings={"job_manager.standby_memory_mib": "0"}) as running:
        yield running


@pytest.fixture
def executor(cluster: LocalCluster, tmp_path: Path) -> Executor:
    return Executor(tmp_path / "functions", connection=cluster)


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


def wait_for(path: str) -> str:
    while not os.path.exists(path):  # noqa: PTH110 - in a job
        time.sleep(0.05)
    return path


def test_results_errors_and_tracebacks_come_back(executor: Executor) -> None:
    numbers = executor.map(lambda x: Point(x * x), [1, 2, 3])
    wrong = executor.submit(operator.truediv, 1, 0)
    assert [point.x for point in numbers] == [1, 4, 9]
    with pytest.raises(ZeroDivisionError) as caught:
        wrong.result(PATIENCE)
    assert isinstance(caught.value.__cause__, FunctionTracebackError)
    assert "run_call" in str(caught.value.__cause__)
    assert wrong.state == "FAILED"
    assert "restarted 0 times" in wrong.job.reason
    assert "ZeroDivisionError" in wrong.stdout()


@pytest.mark.long
def test_a_call_is_cancelled_with_its_job(executor: Executor, tmp_path: Path) -> None:
    future = executor.submit(wait_for, str(tmp_path / "never"))
    wait_until(future.running, PATIENCE, "a running job")
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(0)
    assert future.cancel()
    assert concurrent.futures.wait([future], PATIENCE).done == {future}
    assert future.cancelled()
    assert future.job.wait(PATIENCE) == "CANCELLED"
    assert not executor.submit(int).cancelled()


@pytest.mark.long
def test_a_batch_is_one_submission_of_which_so_many_run_at_once(executor: Executor, tmp_path: Path) -> None:
    executor.update_parameters(slurm_array_parallelism=1)
    with executor.batch():
        futures = [executor.submit(wait_for, str(tmp_path / name)) for name in ("a", "b")]
        with pytest.raises(malletrain.MalleTrainError, match="not submitted"):
            futures[0].job_id  # noqa: B018
    assert futures[0].job_id
    with pytest.raises(malletrain.MalleTrainError, match="not submitted"):
        futures[1].job_id  # noqa: B018
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    assert asyncio.run(futures[1].async_result()) == str(tmp_path / "b")
    assert futures[0].results() == [str(tmp_path / "a")]
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(int)


def test_an_error_in_a_batch_submits_nothing(executor: Executor, cluster: LocalCluster) -> None:
    before = len(cluster.jobs())
    with pytest.raises(ZeroDivisionError), executor.batch():  # noqa: PT012
        future = executor.submit(int)
        1 / 0  # noqa: B018
    assert future.cancelled()
    assert len(cluster.jobs()) == before


@pytest.mark.long
def test_a_job_that_ends_without_a_result_is_an_error(executor: Executor) -> None:
    future = executor.submit(os._exit, 7)
    with pytest.raises(malletrain.JobFailedError, match="exit status 7") as caught:
        future.result(PATIENCE)
    assert (caught.value.job_id, caught.value.state) == (future.job_id, "FAILED")


def world() -> tuple[int, int]:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


@pytest.mark.long
def test_an_elastic_function_has_the_result_of_rank_0(executor: Executor) -> None:
    executor.update_parameters(backend="torchrun", min_nodes=2, max_nodes=2)
    assert executor.submit(world).result(2 * PATIENCE) == (0, 2)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"time_min": 1}, "time_min"),
        ({"timeout_min": 0}, "timeout_min"),
        ({"max_nodes": "4"}, "max_nodes"),
        ({"name": "a", "mem_gb": "4"}, "mem_gb"),
    ],
)
def test_a_wrong_option_is_refused_and_changes_nothing(
    executor: Executor, options: dict[str, object], field: str
) -> None:
    with pytest.raises(malletrain.InvalidInputError) as caught:
        executor.update_parameters(**options)
    assert caught.value.field == field
    assert "name" not in executor.parameters


def test_options_of_submitit_are_understood(executor: Executor) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        executor.update_parameters(gpus_per_node=0, cpus_per_task=2, mem_gb=4, nodes=2, slurm_partition="dev")
    assert [str(warning.message).partition(" ")[0] for warning in told] == ["slurm_partition"]
    assert executor.parameters["cores"] == 2
    assert executor.parameters["memory"] == "4.000000G"


def test_a_folder_that_others_can_write_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(malletrain.InvalidInputError, match="nobody else can write") as caught:
        Executor(tmp_path / "open", connection=cluster)
    assert caught.value.field == "folder"


@pytest.mark.long
def test_the_example_of_submitit_with_only_the_import_changed(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(README.replace("import submitit", "import malletrain as submitit"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip() == cluster.jobs()[-1].id
    assert sys.executable in cluster.jobs()[-1].command
