"""Whether the replay of what was decided agrees with what happened: `python benchmarks/journal.py [--seconds 600]`.

Five real services, and stand-ins for supervisors and trainings, which report batches as real ones do. Nodes leave
and join by a trace, jobs come and end. Then the services' databases are read, and each job is replayed as it was
decided. The services engine also decides anew: how much of the plans is the same.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from benchmarks.journaling.plans import TimedPlan, live_plans, replayed_plans, shared_part
from benchmarks.journaling.running import record
from malletrain.cli.journal.reading import read_journal
from malletrain.cli.shared.settings import load
from malletrain.simulator.journal.decided import agreement, relative


def _figures(plans: Sequence[TimedPlan]) -> dict[str, int]:
    """How many plans there are, of which a part was applied, and jobs in them of which boots were known."""
    return {
        "applied": len(plans),
        "in_part": sum(plan.in_part for plan in plans),
        "boots": sum(plan.boots for plan in plans),
    }


def main() -> None:
    """Run, read, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=positive, default=600)
    parser.add_argument("--nodes", type=positive, default=8)
    parser.add_argument("--jobs", type=positive, default=5)
    parser.add_argument("--events", type=float, default=0.1, help="leaves and joins a second, together")
    parser.add_argument("--folder", type=Path, help="where its files are left; by default they are removed")
    options = parser.parse_args()
    os.environ["COLUMNS"] = "200"
    with tempfile.TemporaryDirectory(prefix="journal-") as name:
        folder = (options.folder or Path(name)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        config = record(
            folder,
            options.nodes,
            options.jobs,
            options.events,
            options.seconds,
            until=lambda _: time.sleep(options.seconds),
        )
        settings = load(config)
        journal = read_journal(str(folder), settings)
        live, again = live_plans(settings, journal), replayed_plans(settings, journal)
    found = agreement(journal)
    recorded, replayed = sum(job.recorded for job in found), sum(job.replayed for job in found)
    figures = {
        "jobs": [
            {"job": job.job_id, "recorded": job.recorded, "difference": round(job.difference, 4), "why": job.reasons}
            for job in found
        ],
        "idle_rows": len(journal.idle),
        "journal_rows": sum(len(job.events) for job in journal.jobs),
        "rescales": sum(job.job.rescales for job in journal.jobs),
        "preemptions": sum(job.job.preemptions for job in journal.jobs),
        "recorded": recorded,
        "replayed": round(replayed),
        "difference": relative(replayed, recorded),
        "plans": {"live": _figures(live), "services engine": _figures(again)},
        "plans_share_node_seconds": round(shared_part(live, again, journal.end_unix - journal.begin_unix), 4),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
