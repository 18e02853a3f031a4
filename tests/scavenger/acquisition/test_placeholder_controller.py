"""The controller with a scheduler in this process, and a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from typing_extensions import override

from malletrain.model.node_needs import NO_NEEDS, NodeNeeds
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.kernel.recording import Moment
from malletrain.scavenger.acquisition.placeholder_controller import PlaceholderController
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.scavenger.machine.placeholder_machine import PlaceholderStep, RecordedPlaceholders, Stimulus
from malletrain.scavenger.machine.placeholder_state import PlaceholderState
from malletrain.scavenger.machine.placeholders import ListedPlaceholder, PlaceholderPhase, PlaceholderPolicy
from malletrain.scavenger.machine.submission_backoff import BackoffPolicy
from malletrain.scavenger.sources.base import SourceError
from tests.scavenger.acquisition.stand_in_scheduler import REFUSAL, SILENCE, Mood, StandInScheduler
from tests.support.clocks import ManualClock

NODES = tuple(f"n{number:03d}" for number in range(1, 101))
POLICY = PlaceholderPolicy(backoff=BackoffPolicy(10, 300, 4))
DELAYS = (10, 20, 40, 300, 300)


class CheckedPlaceholders(RecordedPlaceholders):
    """The machine alone, checked after each stimulus."""

    def __init__(self) -> None:
        super().__init__(POLICY)

    @override
    def advance(self, state: PlaceholderState, stimulus: Stimulus, now: Moment) -> PlaceholderStep:
        result = super().advance(state, stimulus, now)
        self.check(state, result)
        return result

    def forget_last(self) -> None:
        pytest.fail("no stimulus of placeholders is refused")


class Harness:
    """A controller for which a hundred nodes are idle, and their scheduler."""

    def __init__(
        self,
        wanted: int = len(NODES),
        demands: dict[NodeNeeds, int] | None = None,
        recorder: FlightRecorder[PlaceholderState, Stimulus, PlaceholderStep] | None = None,
    ) -> None:
        self.clock = ManualClock(1_800_000_000.0)
        self.facts = {NODES[-1]: NodeFacts(gpu_type="a100", gpus=4)}
        self.scheduler = StandInScheduler(self.clock)
        self.wanted = wanted
        self.controller = PlaceholderController(
            "slurm",
            self.scheduler,
            self.scheduler,
            POLICY,
            lambda: self.wanted,
            self.clock,
            recorder or CheckedPlaceholders(),
            demands=lambda: demands or {},
        )
        self.scheduler.on_change = self.controller.agents_changed
        self.offer()

    def offer(self, *busy: str) -> None:
        until = self.clock.time() + 100_000
        self.controller.set_candidates({node: until for node in NODES if node not in busy}, self.facts)

    async def run(self, seconds: float) -> None:
        """So many seconds, with a step of the controller in each."""
        for _ in range(int(seconds)):
            with contextlib.suppress(SourceError):
                await self.controller.step()
            self.clock.advance(1.0)

    @property
    def times(self) -> list[float]:
        """When placeholders were submitted, in seconds from the first."""
        return [round(time - self.scheduler.submitted[0][0]) for time, _ in self.scheduler.submitted]


async def test_all_idle_nodes_are_taken_when_the_scheduler_takes_them() -> None:
    harness = Harness()
    await harness.run(5)
    assert set(harness.scheduler.nodes) == set(NODES)
    status = harness.controller.status()
    assert (status.running, status.pending, status.failures_in_a_row, status.retry_at) == (100, 0, 0, None)


async def test_nodes_that_suit_no_job_are_not_held() -> None:
    harness = Harness(3, {NodeNeeds(gpu="a100"): 2, NO_NEEDS: 1})
    await harness.run(5)
    assert set(harness.scheduler.nodes) == {NODES[0], NODES[-1]}


async def test_nodes_that_have_come_to_suit_no_job_make_room_for_others() -> None:
    demands = {NO_NEEDS: 2}
    harness = Harness(2, demands)
    await harness.run(5)
    assert set(harness.scheduler.nodes) == {NODES[0], NODES[1]}
    demands.clear()
    demands[NodeNeeds(gpu="a100")] = 2  # as many, and other nodes
    await harness.run(5)
    assert NODES[-1] in harness.scheduler.nodes


async def test_a_scheduler_that_does_not_list_placeholders_is_told_in_the_status() -> None:
    harness = Harness()
    harness.scheduler.mood = Mood.IS_SILENT
    await harness.run(1)
    status = harness.controller.status()
    assert (status.failures_in_a_row, status.node, status.retry_at) == (1, "", None)
    assert "squeue has not answered" in status.error
    harness.scheduler.mood = Mood.STARTS
    await harness.run(7)
    status = harness.controller.status()
    assert (status.failures_in_a_row, status.error) == (0, "")


async def test_placeholders_of_nodes_that_are_to_be_given_back_are_cancelled_and_others_are_tried_at_once() -> None:
    harness = Harness(wanted=2)
    await harness.run(2)
    first = list(harness.scheduler.nodes)
    harness.controller.set_unwanted(frozenset({first[0]}))
    harness.offer(first[0])
    await harness.run(2)
    assert first[0] not in harness.scheduler.nodes
    assert len(harness.scheduler.nodes) == 2, "it was not taken back by the scheduler: there is no calm time"
    await harness.controller.give_all_back()
    assert not harness.scheduler.jobs
    harness.scheduler.mood = Mood.IS_SILENT
    await harness.controller.give_all_back()


async def test_an_agent_that_leaves_for_its_time_limit_does_not_stop_others_from_being_submitted() -> None:
    harness = Harness(wanted=2)
    harness.controller.set_candidates({node: harness.clock.time() + 500 for node in NODES[:2]}, {})
    await harness.run(2)
    harness.clock.advance(486)
    harness.scheduler.leave(NODES[0])
    harness.offer(NODES[0])
    await harness.run(2)
    assert set(harness.scheduler.nodes) & set(NODES[2:])


async def test_a_refusal_is_tried_again_with_one_node_per_delay_not_with_all() -> None:
    harness = Harness()
    harness.scheduler.mood = Mood.REFUSES
    await harness.run(1000)
    assert harness.times == [0, 10, 30, 70, 370, 670, 970]
    assert len({node for _, node in harness.scheduler.submitted}) == 7, "each on another node"
    status = harness.controller.status()
    assert (status.failures_in_a_row, status.paused, status.error) == (7, True, REFUSAL)
    assert status.retry_at == harness.scheduler.submitted[-1][0] + 300


async def test_a_pause_ends_with_one_probe_and_its_success_resets_everything() -> None:
    harness = Harness()
    harness.scheduler.mood = Mood.REFUSES
    await harness.run(200)
    tried = len(harness.scheduler.submitted)
    assert harness.controller.status().paused
    harness.scheduler.mood = Mood.STARTS_WITHOUT_AGENT
    await harness.run(200)
    assert len(harness.scheduler.submitted) == tried + 1
    await harness.run(5)
    assert len(harness.scheduler.submitted) == tried + 1, "it is not known yet whether it succeeds"
    harness.scheduler.mood = Mood.STARTS
    harness.scheduler.report(str(tried + 1))
    await harness.run(5)
    assert len(harness.scheduler.nodes) >= len(NODES) - tried, "but for nodes that are avoided, all at once"
    assert harness.controller.status().failures_in_a_row == 0
    await harness.run(300)
    assert set(harness.scheduler.nodes) == set(NODES)


async def test_jobs_that_end_at_once_count_once_and_then_go_one_by_one() -> None:
    harness = Harness()
    harness.scheduler.mood = Mood.ENDS_AT_ONCE
    await harness.run(7)
    first = len(harness.scheduler.submitted)
    assert first == POLICY.most_pending, "before it is known that they end"
    assert harness.controller.status().failures_in_a_row == 1
    await harness.run(1000)
    assert len(harness.scheduler.submitted) - first == 6
    status = harness.controller.status()
    assert status.paused
    assert "FAILED (NonZeroExitCode)" in status.error


async def test_a_partition_that_is_down_is_told_and_few_are_left_pending() -> None:
    harness = Harness()
    harness.scheduler.mood = Mood.LEAVES_IT_PENDING
    await harness.run(20)
    assert not harness.scheduler.jobs, "those that do not start are cancelled"
    await harness.run(180)
    assert len(harness.scheduler.submitted) <= POLICY.most_pending + 3
    assert "PartitionDown" in harness.controller.status().error
    await harness.run(1000)
    assert len(harness.scheduler.submitted) <= POLICY.most_pending + 7
    harness.scheduler.mood = Mood.STARTS
    await harness.run(400)
    assert set(harness.scheduler.nodes) == set(NODES)


async def test_agents_that_cannot_reach_the_head_node_are_told() -> None:
    harness = Harness(wanted=2)
    harness.scheduler.mood = Mood.STARTS_WITHOUT_AGENT
    await harness.run(70)
    status = harness.controller.status()
    assert status.failures_in_a_row == 1
    assert "agent has not reported within 60 s" in status.error
    assert status.running == 0


async def test_a_scheduler_that_is_silent_is_asked_once_per_delay() -> None:
    harness = Harness()
    harness.scheduler.jobs = {}
    await harness.controller.step()  # it has listed what there is
    harness.scheduler.mood = Mood.IS_SILENT
    for agent in list(harness.scheduler.present.values())[:50]:
        await harness.scheduler.cancel([agent.placeholder])
    before = len(harness.scheduler.submitted)
    await harness.run(100)
    assert 1 <= len(harness.scheduler.submitted) - before <= 4
    assert harness.controller.status().error == SILENCE


async def test_what_was_taken_without_an_answer_is_found_and_counts_as_a_success() -> None:
    harness = Harness()
    harness.scheduler.mood = Mood.TAKES_IT_AND_IS_SILENT
    await harness.controller.step()
    assert len(harness.scheduler.submitted) == 1
    harness.scheduler.mood = Mood.STARTS
    await harness.run(60)
    nodes = harness.scheduler.nodes
    assert sorted(nodes) == sorted(NODES), "all are held, none twice"
    assert harness.controller.status().failures_in_a_row == 0


async def test_one_bad_node_costs_the_others_little() -> None:
    harness = Harness()
    submit = harness.scheduler.submit

    async def refuse_one(node: str, seconds: float, *_: object) -> str:
        if node == NODES[0]:
            harness.scheduler.submitted.append((harness.clock.time(), node))
            raise SourceError("Requested node configuration is not available")
        return await submit(node, seconds)

    harness.scheduler.submit = refuse_one  # type: ignore[method-assign,assignment]
    await harness.run(20)
    assert set(harness.scheduler.nodes) == set(NODES[1:])
    await harness.run(2000)
    assert sum(node == NODES[0] for _, node in harness.scheduler.submitted) <= 10
    for node in NODES[50:]:
        await harness.scheduler.cancel([harness.scheduler.present[node].placeholder])
    await harness.run(POLICY.backoff.backoff_seconds + 5)
    assert set(harness.scheduler.nodes) == set(NODES[1:]), "others that become idle are not kept waiting"


async def test_a_node_that_is_wanted_back_gets_no_other_placeholder() -> None:
    harness = Harness(wanted=2)
    await harness.run(5)
    agent = next(iter(harness.scheduler.present.values()))
    del harness.scheduler.present[agent.node]
    harness.scheduler.leaving = [agent]
    harness.controller.agents_changed()
    before = len(harness.scheduler.submitted)
    await harness.run(10)
    assert len(harness.scheduler.submitted) == before, "the scheduler gathers nodes"
    await harness.run(10)
    assert harness.scheduler.nodes.count(agent.node) <= 1


async def test_the_loop_survives_a_scheduler_that_does_not_answer() -> None:
    harness = Harness(wanted=1)
    harness.scheduler.mood = Mood.IS_SILENT
    running = asyncio.create_task(harness.controller.run())
    await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not harness.controller.has_listed
    assert harness.controller.state.in_phase(PlaceholderPhase.RUNNING) == []


async def test_an_agent_is_expected_where_a_placeholder_may_be() -> None:
    harness = Harness(wanted=1)
    expects = harness.controller.expects
    assert expects("n001"), "what an earlier life has submitted is not known yet"
    await harness.run(2)
    (held,) = harness.scheduler.nodes
    other = next(node for node in NODES if node != held)
    assert (expects(held), expects(other)) == (True, False)
    await harness.scheduler.cancel(list(harness.scheduler.jobs))
    assert not expects(held), "its placeholder has ended"


async def test_an_agent_is_expected_while_the_scheduler_has_not_confirmed_its_placeholder() -> None:
    harness = Harness(wanted=1)
    harness.scheduler.mood = Mood.REFUSES
    await harness.controller.step()
    ((_, node),) = harness.scheduler.submitted
    assert harness.controller.expects(node), "a command that has failed may have got through"
    harness.wanted = 0
    await harness.run(7)
    assert not harness.controller.expects(node), "the scheduler does not list it"


async def test_an_agent_whose_placeholder_the_scheduler_has_forgotten_leaves_and_its_node_may_be_held_anew() -> None:
    harness = Harness(wanted=2)
    await harness.run(6)
    lost, kept = list(harness.scheduler.present)
    del harness.scheduler.jobs[harness.scheduler.present[lost].placeholder]
    harness.offer(*harness.scheduler.present)
    await harness.run(6)
    assert [agent.node for agent in harness.scheduler.leaving] == [lost]
    assert kept in harness.scheduler.present
    assert len(harness.scheduler.nodes) == 2, "nobody has taken it back: there is no calm time"
    assert lost not in harness.scheduler.nodes
    harness.scheduler.end_leaving()
    await harness.scheduler.cancel(list(harness.scheduler.jobs))
    harness.offer(*set(NODES) - {lost})
    await harness.run(6)
    assert harness.scheduler.nodes == [lost]
    assert harness.controller.status().failures_in_a_row == 0


async def test_an_identifier_that_the_scheduler_gives_again_is_not_that_of_the_agent_that_had_it() -> None:
    harness = Harness(wanted=1)
    await harness.run(6)
    (agent,) = list(harness.scheduler.present.values())
    other = NODES[1]
    assert agent.node != other
    harness.scheduler.jobs[agent.placeholder] = ListedPlaceholder(other, PlaceholderPhase.RUNNING)
    await harness.run(6)
    assert [leaving.node for leaving in harness.scheduler.leaving] == [agent.node]
    harness.scheduler.end_leaving()
    assert harness.controller.state.placeholders[agent.placeholder].node == other, "the other one goes on"


async def test_an_agent_whose_placeholder_is_shown_as_pending_twice_leaves_and_the_placeholder_is_cancelled() -> None:
    harness = Harness(wanted=1)
    await harness.run(6)
    (agent,) = list(harness.scheduler.present.values())
    harness.offer(agent.node)
    harness.scheduler.jobs[agent.placeholder] = ListedPlaceholder(agent.node, PlaceholderPhase.PENDING)
    await harness.run(5)
    assert not harness.scheduler.leaving, "a scheduler may start a job before it says so"
    await harness.run(6)
    assert [leaving.node for leaving in harness.scheduler.leaving] == [agent.node]
    assert agent.placeholder not in harness.scheduler.jobs
    assert harness.controller.state.preempted_at < 0, "the scheduler has not taken a node back"


async def test_a_placeholder_whose_agent_is_lost_is_looked_for_before_another_is_submitted() -> None:
    harness = Harness(wanted=1)
    await harness.run(6)
    agent = harness.scheduler.present.pop(harness.scheduler.nodes[0])
    harness.scheduler.lose(agent)
    await harness.run(2)
    assert len(harness.scheduler.submitted) == 1, "it has not ended"
    assert harness.controller.state.nodes == {agent.node}
