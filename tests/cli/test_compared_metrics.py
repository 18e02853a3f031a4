"""What several jobs have logged, side by side."""

from __future__ import annotations

from malletrain.cli.jobs.metrics import LoggedJob, courses, last_values, logged_job, metric_names
from malletrain.cli.shared.listing import ListingRow
from malletrain.v1 import monitor_pb2, resources_pb2


def history(name: str, *points: tuple[int, float]) -> monitor_pb2.MetricHistory:
    return monitor_pb2.MetricHistory(
        name=name, points=[monitor_pb2.MetricPoint(step=step, value=value) for step, value in points]
    )


def job(number: int, **parameters: str) -> resources_pb2.Job:
    spec = resources_pb2.JobSpec(name=f"study-{number}", array_parameters=parameters)
    return resources_pb2.Job(id=f"j{number:06d}", spec=spec, state=resources_pb2.JOB_STATE_RUNNING)


JOBS = [
    logged_job(job(1, lr="0.1"), [history("loss", (1, 0.5), (2, 0.25)), history("state", (1, 7)), history("empty")]),
    logged_job(job(2), [history("loss", (2, 0.75), (4, 1e-9))]),
    LoggedJob(job(3), {}),
]


def texts(rows: list[ListingRow]) -> list[list[str]]:
    return [[cell if isinstance(cell, str) else cell.text for cell in row.cells] for row in rows]


def test_a_row_for_each_job_with_the_last_values() -> None:
    assert metric_names(JOBS) == ["loss", "state"]
    columns, rows = last_values(JOBS)
    assert [column.name for column in columns] == ["job", "name", "parameters", "state", "loss", "metric state"]
    assert texts(rows) == [
        ["j000001", "study-1", "lr=0.1", "RUNNING", "0.25", "7"],
        ["j000002", "study-2", "", "RUNNING", "1e-09", ""],
        ["j000003", "study-3", "", "RUNNING", "", ""],
    ]
    assert rows[0].document() == {
        "job": "j000001",
        "name": "study-1",
        "parameters": {"lr": "0.1"},
        "state": "RUNNING",
        "metrics": {"loss": {"step": 2, "value": 0.25}, "state": {"step": 1, "value": 7.0}},
    }


def test_a_row_for_each_step_with_a_column_for_each_job() -> None:
    columns, rows = courses(JOBS, "loss")
    assert [column.name for column in columns] == ["step", "j000001", "j000002"]
    assert texts(rows) == [["1", "0.5", ""], ["2", "0.25", "0.75"], ["4", "", "1e-09"]]
    assert [row.document() for row in rows][1] == {"step": 2, "values": {"j000001": 0.25, "j000002": 0.75}}
