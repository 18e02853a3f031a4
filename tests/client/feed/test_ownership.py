"""Which feed owns a sample."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from malletrain.client.feeding.peer_share import BLOCK, owner_of, team_of

NAMES = st.text("0123456789abcdef", min_size=1, max_size=4)
FEEDS = st.sets(NAMES, min_size=1, max_size=12)


@given(FEEDS, st.integers(0, 10**12), st.randoms())
def test_all_feeds_agree_on_the_owner(feeds: set[str], number: int, random: Random) -> None:
    ordered = list(feeds)
    random.shuffle(ordered)
    assert owner_of(number, feeds) == owner_of(number, ordered) in feeds


@given(FEEDS, st.integers(0, 10**9))
def test_each_feed_owns_one_block_of_as_many_as_there_are_feeds(feeds: set[str], first: int) -> None:
    start = first * BLOCK
    owners = Counter(owner_of(number, feeds) for number in range(start, start + BLOCK * len(feeds)))
    assert owners == dict.fromkeys(feeds, BLOCK)
    assert len({owner_of(number, feeds) for number in range(start, start + BLOCK)}) == 1


@given(st.sets(NAMES, min_size=1, max_size=40), st.integers(1, 10))
def test_feeds_of_a_team_name_each_other(feeds: set[str], most: int) -> None:
    teams = {own: {own, *team_of(own, feeds, most)} for own in feeds}
    for own, team in teams.items():
        assert own in team <= feeds
        assert len(team) <= most
        assert all(teams[other] == team for other in team)
