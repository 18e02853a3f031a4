"""What `malletrain submit` makes of a script that says nothing of how it is run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.caller.job_request import JobRequest, choose_launch, job_spec, parse_backend
from malletrain.runtime.errors import InvalidInputError

SINGLE = "for _ in range(9): pass\n"
DDP = "import torch.distributed as dist\ndist.init_process_group()\n"
ELASTIC = "from malletrain.client.elastic import init\n"


def asked(
    backend: str = "", least: int = 1, most: int | None = None, permitted: tuple[int, ...] = (), slots: int = 0
) -> JobRequest:
    return JobRequest(
        command=["python", "train.py"],
        backend=backend,
        min_nodes=least,
        max_nodes=most,
        permitted=permitted,
        slots=slots,
    )


@pytest.mark.parametrize(
    ("source", "options", "backend", "most", "said"),
    [
        (SINGLE, asked(), "command", 1, "is a single process, so it runs on one node"),
        (SINGLE, asked(most=4), "command", 1, "is a single process, so it runs on one node"),
        (SINGLE, asked(permitted=(1, 2, 4)), "command", 1, "is a single process, so it runs on one node"),
        (SINGLE, asked(most=1), "command", 1, ""),
        (SINGLE, asked("command"), "command", 1, ""),
        (SINGLE, asked("command", most=3), "command", 3, "leaves all nodes but its first idle"),
        (SINGLE, asked("command", least=2), "command", 2, "leaves all nodes but its first idle"),
        (SINGLE, asked("torchrun"), "torchrun", 8, "each worker runs a whole copy"),
        (SINGLE, asked("torchrun", most=1, slots=2), "torchrun", 1, "each worker runs a whole copy"),
        (SINGLE, asked("torchrun", most=1), "torchrun", 1, ""),
        (SINGLE, asked("horovod", most=2), "horovod", 2, "each worker runs a whole copy"),
        (DDP, asked(), "torchrun", 8, "is started again at each change of scale"),
        (DDP, asked(most=1), "torchrun", 1, ""),
        (DDP, asked(least=10), "torchrun", 10, "is started again at each change of scale"),
        (ELASTIC, asked(), "", 8, ""),
        ("print 1", asked(), "", 1, "starts its ranks can't be told, so it runs on one node"),
        ("print 1", asked(most=3), "", 3, "operator's default backend starts it on each node"),
    ],
)
def test_a_script_gets_the_backend_and_the_scale_that_it_can_use(
    tmp_path: Path, source: str, options: JobRequest, backend: str, most: int, said: str
) -> None:
    (tmp_path / "train.py").write_text(source)
    chosen = choose_launch(options, tmp_path)
    assert (chosen.backend, chosen.max_nodes) == (parse_backend(backend), most)
    assert said in chosen.note
    assert bool(said) == bool(chosen.note)
    assert all(nodes <= most for nodes in chosen.permitted)


def test_a_single_process_is_refused_where_it_must_have_more_nodes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SINGLE)
    with pytest.raises(InvalidInputError, match=r"--min: .*train.py is a single process"):
        choose_launch(asked(least=2), tmp_path)


def test_the_option_that_asks_for_more_nodes_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SINGLE)
    request = JobRequest(command=["python", "train.py"], workdir=tmp_path, nodes_per_replica=2)
    with pytest.raises(InvalidInputError, match=r"--nodes-per-replica: expected 1, or .*single process"):
        job_spec(request)
    with pytest.raises(InvalidInputError, match=r"--min: "):
        job_spec(replace(request, min_nodes=4))


def test_what_is_said_can_be_shown(tmp_path: Path) -> None:
    name = "\x1b[31m" + "x" * 200 + ".py"
    (tmp_path / name).write_text(SINGLE)
    note = choose_launch(replace(asked(), command=["python", name]), tmp_path).note
    assert note.isprintable()
    assert len(note) <= 512
