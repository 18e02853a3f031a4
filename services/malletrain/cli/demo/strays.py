"""Looking for our processes on nodes, independently of what the services say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OurProcess:
    """A process with our mark in its environment."""

    pid: int
    job_id: str
    node: str


def find_processes(folder: Path) -> list[OurProcess]:
    """Every live process of a job whose job folder lies in `folder`; node is empty for a supervisor."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = _environment(entry)
            alive = _alive(entry)
        except OSError:
            continue  # it ended while we looked
        job_folder = environment.get("MALLETRAIN_JOB_DIR", "")
        if alive and job_folder.startswith(f"{folder}/"):
            found.append(
                OurProcess(
                    int(entry.name), environment.get("MALLETRAIN_JOB_ID", ""), environment.get("MALLETRAIN_NODE", "")
                )
            )
    return found


def _environment(entry: Path) -> dict[str, str]:
    pairs = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs) if name}


def _alive(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
