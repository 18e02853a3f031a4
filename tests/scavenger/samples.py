"""What schedulers printed: our own small recordings, and larger ones of real clusters where they are at hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.shared import shared_path

RECORDINGS = Path(__file__).parent / "recordings"
SLURM_SAMPLES = ("cloud_unknown", "multi32_queue", "multi32_states", "preempting")
_USED = {"allocated", "mixed", "completing", "draining"}


def recording(name: str) -> str:
    return (RECORDINGS / name).read_text()


@dataclass(frozen=True)
class SlurmSample:
    """What our commands would have printed, with the truth: state of every node, CPUs in use, reserved nodes."""

    states_text: str
    planned_text: str
    reservations_text: str
    states: dict[str, str]
    used: frozenset[str]

    @property
    def never_idle(self) -> set[str]:
        return {name for name, state in self.states.items() if state not in ("idle", "planned")} | set(self.used)


def slurm_sample(name: str) -> SlurmSample:
    """A recorded cluster. Its `sinfo -N` lines are regrouped into those that we ask for."""
    folder = shared_path(f"schedulers/samples/slurm/{name}")
    rows = [line.split("|") for line in (folder / "sinfo_h_N_robust.txt").read_text().splitlines()]
    states = {row[0]: row[1] for row in rows}
    by_state: dict[str, list[str]] = {}
    for node, state in states.items():
        by_state.setdefault(state, []).append(node)
    queue = [line.split("|") for line in (folder / "squeue_start.txt").read_text().splitlines()]
    return SlurmSample(
        states_text="".join(f"{state}|{','.join(nodes)}\n" for state, nodes in by_state.items()),
        planned_text="".join(f"{row[0]}|{row[3]}|{row[4]}\n" for row in queue),
        reservations_text=(folder / "scontrol_show_res_oneline.txt").read_text(),
        states=states,
        used=frozenset(row[0] for row in rows if not row[3].startswith("0/")),
    )


def pbs_sample(name: str) -> str:
    return shared_path(f"schedulers/samples/pbs/n12_states/{name}").read_text()


def every_sample() -> list[Path]:
    """Every file of the recorded clusters, whatever it is."""
    folder = shared_path("schedulers/samples")
    return sorted(path for path in folder.rglob("*") if path.is_file())
