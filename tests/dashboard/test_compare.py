"""The page Compare in a real Chromium on real services: an array's jobs in one figure, and their logs with times."""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.browsing import NEEDS_CHROMIUM, PATIENCE, SECONDS, drawn, picture, worst_contrast
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment

pytestmark = [pytest.mark.browser, pytest.mark.browser_smoke, pytest.mark.timeout(600), NEEDS_CHROMIUM]
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")

SCRIPT = str(Path(__file__).parents[1] / "system" / "scripts" / "falling_loss.py")
LINES = "Bokeh.documents[0].get_model_by_name('compare')?.renderers[0].data_source.data"
POINTS = f"Math.min(...Array.from({LINES}?.steps ?? [[]]).map((steps) => steps.length))"
RATES = ("0.05", "0.1", "0.2")


def rows(system: Deployment, *arguments: str) -> list[dict[str, str]]:
    done = system.command(*arguments, "-o", "csv")
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_the_jobs_of_an_array_are_compared(page: Any, base: str, system: Deployment, tmp_path: Path) -> None:
    submitted = system.command(
        *(
            "submit",
            "--backend",
            "command",
            "--max",
            "1",
            "--name",
            "sweep",
            "--array",
            f"rate={','.join(RATES)}",
            "--",
        ),
        *(sys.executable, SCRIPT, str(tmp_path), "{rate}"),
    )
    assert submitted.returncode == 0, submitted.stderr
    array = submitted.stdout.split()[0]
    jobs = [row["job"] for row in rows(system, "jobs", "--array", array)]
    assert len(jobs) == len(RATES)
    wait_until(
        lambda: [row.get("loss", "") != "" for row in rows(system, "metrics", array)] == [True] * 3, SECONDS, "values"
    )
    page.goto(f"{base}/compare")
    drawn(page)
    page.locator("#groups a", has_text=array).click()
    page.wait_for_url(re.compile(f"group={array}"), timeout=PATIENCE)
    drawn(page)
    page.wait_for_function(f"() => {LINES}?.job.length === 3 && {POINTS} === 40", timeout=PATIENCE)
    assert page.evaluate(f"() => Array.from({LINES}.job)") == jobs
    assert sorted(page.evaluate(f"() => Array.from({LINES}.label)")) == [f"rate={rate}" for rate in RATES]
    assert page.locator("#metrics a[aria-current]").text_content() == "loss"
    playwright.expect(page.locator(f"#compared-{jobs[0]}")).to_contain_text("rate=0.05")
    in_figure = dict(zip(jobs, page.evaluate(f"() => Array.from({LINES}.colour)"), strict=True))
    ratio, text = worst_contrast(page)
    assert ratio >= 4.5, text
    picture(page, "compare")
    with page.expect_download() as download:
        page.locator("#figure-compare a").click()
    found = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    assert {(row["job"], row["metric"]) for row in found} == {
        (job, name) for job in jobs for name in ("loss", "accuracy")
    }
    page.locator("#metrics a", has_text="accuracy").click()
    drawn(page)
    page.wait_for_function(f"() => {LINES}?.job.length === 3", timeout=PATIENCE)
    page.goto(f"{base}/compare")
    drawn(page)
    page.get_by_label("Identifiers, an array, a search or a name").fill(f"{jobs[0]} {jobs[2]}")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url(re.compile(f"group={jobs[0]}"), timeout=PATIENCE)
    drawn(page)
    page.wait_for_function(f"() => {LINES}?.job.length === 2", timeout=PATIENCE)
    assert page.evaluate(f"() => Array.from({LINES}.job)") == [jobs[0], jobs[2]]
    page.locator(f"#compared-{jobs[2]} a").click()
    page.wait_for_url(re.compile(f"job={jobs[2]}"), timeout=PATIENCE)
    page.locator("#together a", has_text=f"Compare with the others of {array}").click()
    page.wait_for_url(re.compile(f"group={array}"), timeout=PATIENCE)
    page.goto(f"{base}/jobs")
    drawn(page)
    for job, colour in in_figure.items():
        swatch = page.locator(f"#job-{job} .swatch").first
        assert swatch.evaluate(
            "(one, colour) => { const had = one.style.background; one.style.background = colour;"
            " const same = had === one.style.background; return same; }",
            colour,
        )
    log_of(page, base, jobs[0])
    compared(system, array, jobs)
    (tmp_path / "go").touch()
    wait_until(lambda: {row["state"] for row in rows(system, "metrics", array)} == {"COMPLETED"}, SECONDS, "their end")


def log_of(page: Any, base: str, job: str) -> None:
    """The log has times, and is open at its end."""
    page.goto(f"{base}/job?job={job}")
    drawn(page)
    playwright.expect(page.locator("#log")).to_contain_text(
        re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  n\d \| step 40 loss"), timeout=PATIENCE
    )
    at_end = (
        "() => { const log = document.getElementById('log');"
        " return log.scrollHeight > log.clientHeight && log.scrollHeight - log.scrollTop - log.clientHeight < 30; }"
    )
    page.wait_for_function(at_end, timeout=PATIENCE)


def compared(system: Deployment, array: str, jobs: list[str]) -> None:
    """The command shows the same."""
    last = rows(system, "metrics", array, "--sort", "loss")
    assert [row["parameters"] for row in last] == [f"rate={rate}" for rate in reversed(RATES)]
    assert float(last[0]["loss"]) == pytest.approx(0.8**40)
    curves = rows(system, "metrics", *jobs, "--curves", "--name", "accuracy")
    assert [int(row["step"]) for row in curves] == list(range(1, 41))
    assert [float(curves[0][job]) for job in jobs] == pytest.approx([0.05, 0.1, 0.2])
    assert system.json("metrics", array)[0]["metrics"]["loss"]["step"] == 40
    refused = system.command("metrics", array, "--curves")
    assert refused.returncode != 0
    assert "--name" in refused.stderr
    refused = system.command("metrics", array, "--name", "other")
    assert "none of these jobs" in refused.stderr
    assert "--curves" in system.command("metrics", jobs[0], "--curves").stderr
    logged = system.command("logs", jobs[0], "--timestamps", "--since", "1h", "--grep", "step 40").stdout
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  n\d \| step 40 loss 0.129\n", logged)
