"""The figures of what a job has logged, in a real Chromium on real services: they appear by themselves and go on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.browsing import NEEDS_CHROMIUM, PATIENCE, SECONDS, drawn, picture
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600), NEEDS_CHROMIUM]

SCRIPT = str(Path(__file__).parents[1] / "system" / "scripts" / "logging_loss.py")
FIGURE = "Bokeh.documents[0].get_model_by_name('metric-{number}')"
POINTS = f"({FIGURE}?.renderers.find((one) => one.data_source.data.value)?.data_source.data.value.length ?? 0)"
DRAWN = """() => Array.from(document.querySelectorAll('#figure-metrics canvas, #figure-metrics *')).length > 0"""


def test_each_metric_has_a_figure_that_goes_on_and_marks_changes(
    page: Any, base: str, system: Deployment, tmp_path: Path
) -> None:
    submitted = system.command(
        "submit", "--backend", "command", "--max", "2", "--", sys.executable, SCRIPT, str(tmp_path)
    )
    assert submitted.returncode == 0, submitted.stderr
    job_id = submitted.stdout.strip()
    wait_until(lambda: system.json("job", job_id)["state"] == "RUNNING", SECONDS, "a running job")
    page.goto(f"{base}/job?job={job_id}&span=900")
    drawn(page)
    for number, name in ((1, "loss"), (2, "rate")):
        points = POINTS.format(number=number)
        page.wait_for_function(f"() => {points} > 3", timeout=PATIENCE)
        assert page.evaluate(f"() => {FIGURE.format(number=number)}.left[0].axis_label") == name
    before = page.evaluate(f"() => {POINTS.format(number=1)}")
    page.wait_for_function(f"() => {POINTS.format(number=1)} > {before}", timeout=PATIENCE)
    held = system.json("job", job_id)["confirmedNodes"]
    assert system.command("drain", held[0]).returncode == 0
    marks = f"{FIGURE.format(number=1)}.renderers[0].data_source.data.kind"
    page.wait_for_function(f"() => {marks}.includes('preemption') || {marks}.includes('move')", timeout=PATIENCE)
    drawn(page)
    page.wait_for_function(DRAWN, timeout=PATIENCE)
    page.locator("#figure-metrics").scroll_into_view_if_needed()
    picture(page, "job-metrics")
    with page.expect_download() as download:
        page.locator("#figure-metrics a").click()
    heading, *rows = Path(download.value.path()).read_text().splitlines()
    assert heading == "unix_s,metric,step,value,least,most,values"
    assert {row.split(",")[1] for row in rows} == {"loss", "rate"}
    (tmp_path / "go").touch()
    wait_until(lambda: system.json("job", job_id)["state"] == "COMPLETED", SECONDS, "the end")
