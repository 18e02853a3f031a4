"""A stand-in for PBS with a few nodes: `pbs_commands.py COMMAND FOLDER [ARGUMENT...]`; standard library only.

Jobs are processes of this machine; FOLDER/jobs has a file for each. FOLDER/taken names the nodes that main jobs have.
"""

from __future__ import annotations

import getpass
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_VERSION = {"timestamp": 0, "pbs_version": "23.06.06", "pbs_server": "head"}
_UNKNOWN_JOB = 153
_ARGUMENT = re.compile(r"<jsdl-hpcpa:Argument>([^<]*)</jsdl-hpcpa:Argument>")


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def jobs(folder: Path) -> dict[str, dict[str, Any]]:
    found = {path.stem: json.loads(path.read_text()) for path in sorted((folder / "jobs").glob("*.json"))}
    return {f"{name}.head": job for name, job in found.items() if alive(job["pid"])}


def names_in(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def pbsnodes(folder: Path) -> dict[str, Any]:
    taken, held = names_in(folder / "taken"), {job["node"]: name for name, job in jobs(folder).items()}
    nodes = {}
    for name in names_in(folder / "nodes"):
        mine = ["1000000.head"] if name in taken else [held[name]] if name in held else []
        nodes[name] = {
            "state": "job-exclusive" if mine else "free",
            "resources_available": {"ncpus": 1, "host": name},
            "resources_assigned": {"ncpus": 1} if mine else {},
            **({"jobs": mine} if mine else {}),
        }
    return {**_VERSION, "nodes": nodes}


def qstat(folder: Path) -> str:
    lines = []
    for name, job in jobs(folder).items():
        attributes = {
            "Job_Name": job["name"],
            "Job_Owner": f"{getpass.getuser()}@head",
            "job_state": "R",
            "queue": job["queue"],
            "exec_host": f"{job['node']}/0",
            "Resource_List.select": f"1:host={job['node']}:ncpus=1",
            "argument_list": "".join(f"<jsdl-hpcpa:Argument>{word}</jsdl-hpcpa:Argument>" for word in job["words"]),
        }
        lines += [f"Job Id: {name}", *(f"    {key} = {value}" for key, value in attributes.items()), ""]
    return "".join(f"{line}\n" for line in lines)


def qsub(folder: Path, words: list[str], script: str) -> str:
    """Start a job's program. Its script is only kept, beside the file with its nodes, where an agent looks for it."""
    attributes = dict(word.split("=", 1) for flag, word in itertools.pairwise(words) if flag == "-W")
    command = [attributes["executable"], *_ARGUMENT.findall(attributes["argument_list"])]
    node = next(word for word in words if word.startswith("select=")).partition("host=")[2].partition(":")[0]
    number = len(list((folder / "jobs").iterdir())) + 1
    name = f"{number}.head"
    nodes, kept = folder / "mom" / "aux" / name, folder / "mom" / "mom_priv" / "jobs" / f"{name}.SC"
    for path, content in ((nodes, f"{node}\n"), (kept, script)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    with (folder / "agents.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "PBS_JOBID": name, "PBS_NODEFILE": str(nodes)},
        )
    job = {
        "pid": process.pid,
        "node": node,
        "name": words[words.index("-N") + 1],
        "queue": words[words.index("-q") + 1],
        "words": command,
    }
    (folder / "jobs" / f"{number}.json").write_text(json.dumps(job))
    return name


def qdel(folder: Path, name: str) -> int:
    job = jobs(folder).get(name)
    if job is None:
        return _UNKNOWN_JOB
    os.kill(job["pid"], signal.SIGTERM)
    return 0


def main() -> int:
    command, folder, words = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    if command == "pbsnodes":
        print(json.dumps(pbsnodes(folder)))
    elif command == "qstat":
        print(qstat(folder), end="")
    elif command == "qsub":
        print(qsub(folder, words, sys.stdin.read()))
    elif command == "qdel":
        return qdel(folder, words[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
