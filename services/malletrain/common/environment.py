"""Names of the environment variables that supervisors and workers get.

`malletrain/common/worker_bootstrap.py` repeats some of them: it runs in interpreters that may not have this package.
"""

from __future__ import annotations

PREFIX = "MALLETRAIN_"
"""Every variable of MalleTrain begins with it, the services' settings too."""

TRAINER_DEFAULTS = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
"""Variables that workers on this machine get unless their job sets them."""

JOB_ID = "MALLETRAIN_JOB_ID"
"""Job identifier, e.g. j000001."""
JOB_DIR = "MALLETRAIN_JOB_DIR"
"""Path of the job's folder; see `malletrain.common.job_folder`."""
INCARNATION = "MALLETRAIN_INCARNATION"
"""How many times the job has been started, as a number from 1. Only the supervisor and what it starts have it."""
SUPERVISOR = "MALLETRAIN_SUPERVISOR"
"""PID:START_TIME of the supervisor that started a worker."""
BACKEND = "MALLETRAIN_BACKEND"
"""Launcher backend of the job: horovod, torchrun or command."""
NODE = "MALLETRAIN_NODE"
"""Name of a worker's node. A supervisor does not have it."""
SLOTS_PER_NODE = "MALLETRAIN_SLOTS_PER_NODE"
"""Worker processes per node, at least 1."""
TARGET_SAMPLES = "MALLETRAIN_TARGET_SAMPLES"
"""Samples after which the job is complete; 0 where there is no target."""
MONITOR = "MALLETRAIN_MONITOR"
"""HOST:PORT of Monitor as a worker reaches it."""
MONITOR_AUTHORITY = "MALLETRAIN_MONITOR_AUTHORITY"
"""Path of the CA certificates by which Monitor is known where MALLETRAIN_MONITOR is not on loopback."""
MONITOR_NAME = "MALLETRAIN_MONITOR_NAME"
"""Name in Monitor's certificate; not set: the host of MALLETRAIN_MONITOR."""
MONITOR_FOR_NODES = "MALLETRAIN_MONITOR_FOR_NODES"
"""HOST:PORT of Monitor as a node's agent reaches it; not set where Monitor does not listen for agents."""
PREIMPORT = "MALLETRAIN_PREIMPORT"
"""Modules to import while a worker waits for its start, separated by commas."""
HOSTFILE = "MALLETRAIN_HOSTFILE"
"""Backend `command`: path of a file with a line `NAME slots=N` for each host."""
HOSTS = "MALLETRAIN_HOSTS"
"""Backend `command`: the hosts as `NAME:N,NAME:N`."""
WORLD_SIZE = "MALLETRAIN_WORLD_SIZE"
"""Backend `command`: sum of the slots of all hosts."""
GENERATION = "MALLETRAIN_GENERATION"
"""Backend `command`: 1 for the first start of the program, one more for each further start."""
