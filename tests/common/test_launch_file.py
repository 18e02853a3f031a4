"""What JobManager writes into `launch.json` is what a supervisor reads there."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from malletrain.common.job_limits import JobLimits
from malletrain.common.launch_file import AgentAddress, Launch, launch_document, launch_from_document

WORDS = st.text(max_size=8)
SECONDS = st.floats(0, 1e6)
ADDRESSES = st.builds(AgentAddress, st.text(min_size=1, max_size=8), WORDS)
LAUNCHES = st.builds(
    Launch,
    *(WORDS, WORDS, st.tuples(WORDS, WORDS), WORDS, st.dictionaries(WORDS, WORDS), st.integers(1, 9), WORDS),
    sequence=st.integers(0),
    hosts=st.dictionaries(WORDS, st.integers(1, 9), max_size=3),
    interfaces=st.tuples(WORDS),
    limits=st.builds(JobLimits, *[SECONDS] * 6),
    user_id=st.none() | st.integers(1),
    certificate_file=WORDS,
    incarnation=st.integers(0),
    keep_seconds=SECONDS,
    accepts_open_store=st.booleans(),
)


@given(LAUNCHES, ADDRESSES)
def test_a_launch_is_read_as_it_was_written(launch: Launch, agent: AgentAddress) -> None:
    known = dict.fromkeys(list(launch.hosts)[:1], agent)
    written = Launch(**{**vars(launch), "agents": known})
    assert launch_from_document(json.loads(json.dumps(launch_document(written)))) == written


def test_a_launch_of_an_earlier_version_lacks_what_came_later() -> None:
    now = launch_document(Launch("j000001", "command", ("true",), "/", {}, 1, "socket", 1))
    first = ("job_id", "backend", "command", "working_directory", "environment", "slots_per_node", "socket", "sequence")
    earlier = {name: now[name] for name in (*first, "hosts")}
    assert launch_document(launch_from_document(earlier)) == now


def test_limits_of_a_later_version_are_left_out() -> None:
    document = launch_document(Launch("j000001", "command", ("true",), "/", {}, 1, "socket", 1))
    document["limits"] = {"save_seconds": 600, "nap_seconds": 5}
    assert launch_from_document(document).limits == JobLimits(save_seconds=600.0)
