"""Names of the files in a job's folder, `STATE_DIR/jobs/JOB_ID`."""

from __future__ import annotations

from pathlib import Path

INSTANCE_FILE = "instance-id"
"""The random identifier of the job whose folder this is. JobManager writes it before anything else."""
LAUNCH_FILE = "launch.json"
"""What the supervisor is to run. JobManager writes it, the supervisor reads it."""
SUPERVISOR_FILE = "supervisor.json"
"""Identity and socket of the supervisor, which writes it once it serves."""
OUTCOME_FILE = "outcome.json"
"""How the workers ended. The supervisor writes it when it ends."""
COMPLETION_FILE = "completed.json"
"""The job is complete, with its metrics. The trainer writes it (`malletrain.client.done`)."""
TOKEN_FILE = "report.token"
"""The token that the job's sidecar shows to Monitor. JobManager writes and renews it; only its owner can read it."""
CERTIFICATE_FILE = "supervisor.pem"
"""The certificate of the supervisor of a job that runs as its owner. JobManager writes and renews it."""
AUTHORITY_FILE = "ca.pem"
"""Certificates by which a trainer knows Monitor, or the agent of its node. JobManager writes it."""
FEED_CERTIFICATE_FILE = "feed.pem"
"""By which feeds of a fleet know those of its other nodes. JobManager writes and renews it, for members of fleets."""
HOSTS_FILE = "hosts"
"""Backend `command`: the hosts, one `NAME slots=N` a line."""
STOP_REQUESTS_FOLDER = "stop-requests"
"""An empty file for each trainer that was sent STOP through Monitor, named by its process id. Its sidecar writes it."""
UNDELIVERED_FOLDER = "undelivered"
"""An empty file while not all records of a reporter are delivered. The trainer writes it, its sidecar removes it."""
DELIVERY_SECONDS = 3.0
"""How long a sidecar goes on after the end of its trainer."""
LAST_DELIVERY_SECONDS = 30.0
"""The same where it can't reach Monitor; whoever wants the node or begins the next generation ends it before."""
SUPERVISOR_LOG = "supervisor.log"
"""Output of the supervisor."""
LOGS_FOLDER = "logs"
"""Output of the workers, one file each; see `worker_log`."""
LOG_SUFFIX = ".log"
"""At the end of the names of all these."""
LOG_TIMES_SUFFIX = ".times"
"""Of the file beside a log that says when it was as large; see `log_times`."""
LAUNCH_LOG = "launch.log"
"""What a supervisor tells the job's owner, in the folder of the workers' output."""
SIDECAR_LOG = "sidecar.log"
"""Output of the client's sidecar, in the folder of the logs."""
STAGE_OUT_LOG = "stage-out.log"
"""Output of what copies checkpoints for agents, in the folder of the logs; see `malletrain.common.stage_out`."""
FEED_LOG = "feed.log"
"""Output of feeds that the job's trainers have started, in the folder of the logs."""
CHECKPOINTS_FOLDER = "checkpoints"
"""Checkpoints that the client's helpers write."""
COMPILED_FOLDER = "compiled"
"""What torch.compile has made for the job's workers, by kind of machine; `worker_bootstrap` tells it to."""
SAVING_FOLDER = "saving"
"""A file PID for each worker that is saving its last checkpoint. The supervisor waits for it."""
LEAVE_FILE = "leave.json"
"""On which hosts others come after the present workers, and which are given back: written before these are to leave."""
SHARDED_FOLDER = "sharded"
"""A file PID for each worker with a part of the state that others do not have. After a loss, it may save as well."""
STAGE_OUT_FOLDER = "stage-out"
"""A file for each checkpoint, or part of one, that an agent still has to copy. The supervisor waits for it."""
FEEDS_FOLDER = "feeds"
"""Where the feeds of a fleet's nodes listen, one file each, in the folder of its first member. The feeds write them."""
OBSERVED_FOLDER = "observed"
"""What `malletrain check` has seen of each worker's steps, in a file PID.jsonl."""
STEP_TIMES_FOLDER = "step-times"
"""How long each worker's own part of a step takes, in a file for each rank. The workers write them."""
OWN_FILES = (
    LAUNCH_FILE,
    SUPERVISOR_FILE,
    OUTCOME_FILE,
    COMPLETION_FILE,
    TOKEN_FILE,
    CERTIFICATE_FILE,
    AUTHORITY_FILE,
    FEED_CERTIFICATE_FILE,
    HOSTS_FILE,
    LEAVE_FILE,
    SUPERVISOR_LOG,
)
"""What MalleTrain writes into the folder itself. Checkpoints are the owner's."""
OWN_FOLDERS = {
    LOGS_FOLDER: (LOG_SUFFIX, LOG_TIMES_SUFFIX),
    STOP_REQUESTS_FOLDER: ("",),
    SAVING_FOLDER: ("",),
    SHARDED_FOLDER: ("",),
    STAGE_OUT_FOLDER: ("",),
    FEEDS_FOLDER: (".json",),
    STEP_TIMES_FOLDER: ("",),
    UNDELIVERED_FOLDER: ("",),
}
"""Folders whose files MalleTrain writes, with the ends of their names."""


def undelivered_mark(job_folder: Path, reporter_id: str) -> Path:
    """The file that says that a reporter's records are not all delivered yet."""
    return job_folder / UNDELIVERED_FOLDER / reporter_id.replace("/", "_")


def worker_log(node: str, local_rank: int) -> str:
    """Name of a worker's log in the folder of the logs."""
    return f"{node}.{local_rank}{LOG_SUFFIX}"


def log_times_path(log: Path) -> Path:
    """The file beside a log that says when it was as large."""
    return log.with_suffix(LOG_TIMES_SUFFIX)
