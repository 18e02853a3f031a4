"""No bytes of users reach a parser without bounds: each other parser in the sources is listed here, with its reason."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARSERS = {
    ("json", "load"),
    ("json", "loads"),
    ("pickle", "load"),
    ("pickle", "loads"),
    ("pickle", "Unpickler"),
    ("marshal", "load"),
    ("marshal", "loads"),
    ("ast", "literal_eval"),
    ("shelve", "open"),
    ("yaml", "load"),
}
_DATABASE = "a column of the service's own database, which this service has written"
_OWN_FILE = "a file in the state folder, which only the services' account can enter"
_FROM_PARENT = "what the process that has started this one says, on a pipe or socket that nobody else has"
_OWN_CHILD = "what a child process of the services' account says, which runs our code and nothing of a user"
_SCHEDULER = "what the batch scheduler's own command prints"
_OWN_COMMAND = "a file that the user who runs the command names or has, with that user's own rights"
_OWN_CODE = "a file of this package, whose code is run anyway"
_OWN_PROCESS = "runs in the user's own training, or between trainings of one account, with that account's rights"
ALLOWED = {
    "services/malletrain/allocator/auto_tuning/documents.py": _OWN_CHILD,
    "services/malletrain/allocator/history/idle_store.py": _DATABASE,
    "services/malletrain/allocator/solvers/solver_process.py": _OWN_CHILD,
    "services/malletrain/cli/check/job_run.py": _OWN_COMMAND,
    "services/malletrain/cli/operate/debug.py": _OWN_COMMAND,
    "services/malletrain/cli/journal/what_if.py": _FROM_PARENT + "; and " + _OWN_FILE,
    "services/malletrain/cli/shared/message_file.py": _OWN_COMMAND,
    "services/malletrain/common/drop_privileges.py": _FROM_PARENT,
    "services/malletrain/cli/operate/service_forks.py": _FROM_PARENT,
    "services/malletrain/common/standby/child.py": _FROM_PARENT,
    "services/malletrain/common/standby/program.py": _FROM_PARENT,
    "services/malletrain/common/untrusted_json.py": "the bounded reader itself",
    "services/malletrain/common/worker_bootstrap.py": _FROM_PARENT,
    "services/malletrain/dashboard/replays.py": _OWN_CHILD,
    "services/malletrain/job_manager/launching/folder.py": _OWN_FILE,
    "services/malletrain/job_manager/notifications/notifier.py": _OWN_FILE,
    "services/malletrain/runtime/notices/post.py": _FROM_PARENT,
    "services/malletrain/job_manager/storage/earlier_usage.py": _DATABASE,
    "services/malletrain/job_manager/storage/store.py": _DATABASE,
    "services/malletrain/profiler/store.py": _DATABASE,
    "services/malletrain/runtime/access/revocation.py": _OWN_FILE,
    "services/malletrain/runtime/database/schema_history.py": _OWN_CODE,
    "services/malletrain/scavenger/sources/schedulers/tolerant_json.py": _SCHEDULER,
    "services/malletrain/scavenger/state_file.py": _OWN_FILE,
    "services/malletrain/scavenger/trace_files.py": _OWN_COMMAND,
    "services/malletrain/simulator/batch/machine.py": _OWN_COMMAND,
    "services/malletrain/simulator/report/delays.py": _OWN_COMMAND,
    "services/malletrain/supervisor/rendezvous/server.py": "makes numbers, texts, lists and tables only",
    "clients/malletrain/api/call_files.py": "files that only this account can have written, as trusted_files.py finds",
    "clients/malletrain/client/object_transfer.py": _OWN_PROCESS,
    "clients/malletrain/client/job_context.py": "a worker reads the file of its own job, and harms nobody else",
    "clients/malletrain/client/feeding/codec.py": _OWN_PROCESS,
    "clients/malletrain/client/feeding/messages.py": _OWN_PROCESS,
    "clients/malletrain/client/feeding/peer_registry.py": _OWN_PROCESS,
    "clients/malletrain/client/feeding/process.py": _OWN_PROCESS,
}
# Of a listed file, how often it parses: one more is one more reason to give.
SEVERAL = {
    "clients/malletrain/api/call_files.py": 4,
    "services/malletrain/cli/journal/what_if.py": 2,
    "services/malletrain/job_manager/storage/earlier_usage.py": 2,
    "services/malletrain/job_manager/storage/store.py": 4,
    "services/malletrain/allocator/history/idle_store.py": 2,
    "services/malletrain/profiler/store.py": 2,
}


def parsers(source: str) -> int:
    """How often a source uses a parser, by whatever name it is imported."""
    tree = ast.parse(source)
    direct = {
        (alias.asname or alias.name): (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    found = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += (modules.get(node.value.id, ""), node.attr) in PARSERS
        elif isinstance(node, ast.Name):
            found += direct.get(node.id) in PARSERS
    return found


def sources() -> dict[str, str]:
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for top in ("services", "clients")
        for path in sorted((ROOT / top).rglob("*.py"))
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
    }


def test_no_other_file_parses_without_bounds() -> None:
    found = {name: count for name, source in sources().items() if (count := parsers(source))}
    assert found == {name: SEVERAL.get(name, 1) for name in ALLOWED}, (
        "read what users write with malletrain.common.untrusted_json; "
        "anything else is listed in ALLOWED with the reason why no user can have written it"
    )


@pytest.mark.parametrize(
    "source",
    [
        "import json\njson.loads(b'')",
        "import json as j\nx = j.load",
        "from json import loads\nloads(b'')",
        "from pickle import loads as read\nread(b'')",
        "import pickle\nclass A(pickle.Unpickler): pass",
    ],
)
def test_the_check_sees_a_parser(source: str) -> None:
    assert parsers(source) == 1
