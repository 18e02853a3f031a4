"""Long lists in pieces, and readers that join them, of this version and of the one before."""

from __future__ import annotations

from malletrain.runtime.pieces import Joined, pieces
from malletrain.v1 import job_manager_pb2, resources_pb2


def jobs(count: int, size: int) -> list[resources_pb2.Job]:
    return [resources_pb2.Job(id=f"j{number:06}", reason="x" * size) for number in range(count)]


def test_pieces_are_bounded_and_nothing_is_lost() -> None:
    entries = jobs(100, 1000)
    cut = list(pieces(entries, max_bytes=10_000))
    assert [entry for piece, _ in cut for entry in piece] == entries
    assert max(sum(entry.ByteSize() for entry in piece) for piece, _ in cut) < 12_000
    assert [more for _, more in cut] == [True] * (len(cut) - 1) + [False]


def test_an_empty_list_is_one_piece() -> None:
    assert list(pieces([])) == [([], False)]


def test_a_reader_gets_one_message() -> None:
    entries = jobs(50, 1000)
    joined = Joined()
    whole = [
        found
        for index, (piece, more) in enumerate(pieces(entries, max_bytes=10_000))
        if (
            found := joined.add(
                job_manager_pb2.WatchJobsResponse(snapshot=not index, jobs=piece, plan_generation=7, more=more)
            )
        )
        is not None
    ]
    assert len(whole) == 1
    assert (whole[0].snapshot, whole[0].plan_generation, whole[0].more) == (True, 7, False)
    assert list(whole[0].jobs) == entries
    later = job_manager_pb2.WatchJobsResponse(jobs=entries[:1])
    assert joined.add(later) is later


def test_messages_of_a_service_of_the_last_release_are_passed_on() -> None:
    message = job_manager_pb2.WatchJobsResponse(snapshot=True, jobs=jobs(3, 10))
    assert Joined().add(message) is message
