"""Who of the processes of a command is asked to end first."""

from __future__ import annotations

import pytest

from malletrain.common.orderly_leave import Member, first_to_leave

LOADER = ("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()", "--multiprocessing-fork")


def member(pid: int, parent: int, command: str | tuple[str, ...], *, saves: bool = False, name: str = "") -> Member:
    words = tuple(command.split()) if isinstance(command, str) else command
    return Member(pid, parent, name or words[0], words, catches=saves)


@pytest.mark.parametrize(
    ("first", "members"),
    [
        ((2,), [member(1, 0, "bash run.sh"), member(2, 1, "python train.py", saves=True)]),
        ((2,), [member(1, 0, "bash run.sh"), member(2, 1, "python train.py")]),
        ((3,), [member(1, 0, "bash a.sh"), member(2, 1, "sh b.sh"), member(3, 2, "./train", saves=True)]),
        ((2,), [member(1, 0, "time ./train"), member(2, 1, "./train")]),
        # A shell with a handler of its own: for itself, unless what it has started saves.
        ((1,), [member(1, 0, "sh save.sh", saves=True), member(2, 1, "sleep 1")]),
        ((2,), [member(1, 0, "sh save.sh", saves=True), member(2, 1, "python train.py", saves=True)]),
        # Launchers, whether they pass the signal on or die of it.
        (
            (2, 3),
            [
                member(1, 0, "python /venv/bin/torchrun train.py", saves=True),
                member(2, 1, "python -u train.py", saves=True),
                member(3, 1, "python -u train.py", saves=True),
            ],
        ),
        ((2,), [member(1, 0, "python -m accelerate.commands.launch t.py"), member(2, 1, "python t.py", saves=True)]),
        ((2,), [member(1, 0, "python launch.py"), member(2, 1, "python train.py", saves=True)]),
        ((1,), [member(1, 0, "python launch.py"), member(2, 1, "python train.py")]),
        ((3,), [member(1, 0, "mpirun -n 1 x"), member(2, 1, "sh x"), member(3, 2, "python t.py", saves=True)]),
        ((1,), [member(1, 0, "srun python train.py", saves=True)]),
        # A trainer, with what it has started.
        ((1,), [member(1, 0, "python train.py", saves=True), member(2, 1, "wandb-core", saves=True)]),
        ((1,), [member(1, 0, "python train.py"), member(2, 1, "wandb-core", saves=True)]),
        ((1,), [member(1, 0, "python train.py", saves=True), member(2, 1, LOADER, saves=True)]),
        ((1,), [member(1, 0, "python t.py"), member(2, 1, "python t.py", saves=True, name="pt_data_worker")]),
        ((1,), [member(1, 0, "python t.py"), member(2, 1, LOADER)]),
        ((1,), [member(1, 0, "python t.py"), member(2, 1, "python -P -m malletrain.client.sidecar", saves=True)]),
        # Ranks that a script has started itself, which save.
        ((2, 3), [member(1, 0, "python t.py"), member(2, 1, LOADER, saves=True), member(3, 1, LOADER, saves=True)]),
        # Its parent has ended: it is still of the command.
        ((2,), [member(1, 0, "sh run.sh"), member(2, 77, "python train.py", saves=True)]),
        ((2,), [member(2, 77, "python train.py")]),
    ],
)
def test_the_innermost_that_saves_is_first(first: tuple[int, ...], members: list[Member]) -> None:
    assert first_to_leave(1, members) == first


@pytest.mark.parametrize("saves", [True, False])
def test_what_reads_the_trainers_output_is_not_first(saves: bool) -> None:
    trainer = Member(2, 1, "python", ("python", "train.py"), saves, writes=frozenset({"pipe:[7]"}))
    tee = Member(3, 1, "tee", ("tee", "log"), catches=saves, reads="pipe:[7]")
    assert first_to_leave(1, [member(1, 0, "sh run.sh"), trainer, tee]) == (2,)
