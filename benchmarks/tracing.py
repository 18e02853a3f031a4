"""What distributed tracing costs the event loops: `python benchmarks/tracing.py`.

For one event: the spans that Scavenger, Allocator and JobManager make of it, with one job and its supervisor's report;
once without a collector in the settings, once with one that takes all, once with one that is away. The queue is drained
by a thread of the same process, as in the services, so that its share of the interpreter is in the figures.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from typing_extensions import override

from malletrain.allocator.problem.allocation_problem import Allocation, AllocationProblem
from malletrain.allocator.telemetry.plan_spans import PlanSpans
from malletrain.job_manager.machine.effects import SetHosts
from malletrain.job_manager.machine.jobs import Job, JobSpec
from malletrain.job_manager.telemetry.change_spans import ChangeSpans
from malletrain.model.job_state import JobState
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.messages import timestamp
from malletrain.runtime.tracing.propagation import doing, present_context, to_message
from malletrain.runtime.tracing.settings import TracingSettings
from malletrain.runtime.tracing.spans import Tracer, open_tracer
from malletrain.scavenger.machine.idle_set import IdleEvent, IdleNode
from malletrain.scavenger.telemetry.event_spans import EventSpans
from malletrain.v1 import allocator_pb2, scavenger_pb2, supervisor_pb2

EVENTS = 3000
WARM_UP = 200
PAUSE_SECONDS = 0.001
"""Between events: in bursts the queue would overflow, and a dropped span costs less."""


class Accepting(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes all spans."""

    @override
    def Export(self, request: Any, context: Any) -> Any:
        """Thanks."""
        del request, context
        return trace_service_pb2.ExportTraceServiceResponse()


def one_event(tracer: Tracer) -> Callable[[], None]:
    """What the services do for one event, less the event itself."""
    clock = SystemClock()
    events, plans, changes = EventSpans(), PlanSpans(), ChangeSpans()
    spec = JobSpec(name="job", command=("true",), working_directory="/", min_nodes=1, max_nodes=4)
    nodes = ("n1", "n2")
    before = Job(1, spec, JobState.RESCALING, "", 0.0, 0.0, wanted=nodes, commanded=nodes, held=nodes, supervised=True)
    after = Job(
        1,
        spec,
        JobState.RUNNING,
        "",
        0.0,
        0.0,
        wanted=nodes,
        commanded=nodes,
        confirmed=nodes,
        held=nodes,
        supervised=True,
    )
    events.register(tracer)
    plans.register(tracer)
    changes.register(tracer, lambda: {before.id: before})
    problem, allocation = AllocationProblem(nodes, 120.0, ()), Allocation(1.0, "OPTIMAL", "dp", 0.0, ())
    event = IdleEvent((IdleNode("n2", 0.0),))
    effect = SetHosts(before.id, 1, 2, nodes)

    def run() -> None:
        now = clock.time()
        span = events.begin_caused(event, "source", now)
        message = scavenger_pb2.WatchNodesResponse(left=(), trace_context=to_message(span.context))
        span.end()
        plans.note_event(message, now)
        with plans.plan("nodes joined: n2") as plan:
            with plan.step("refresh_stays"), plan.step("solve"):
                plan.note_solution(problem, allocation)
            with plan.step("apply") as applying, doing(applying), changes.taking_plan(1) as taken:
                taken((before.id,))
            plan.note_outcome(allocator_pb2.Plan(generation=1, applied=True))
        with changes.command(effect):
            context = to_message(present_context())
        if context is not None:
            report = supervisor_pb2.CommandReport(
                trace_context=context,
                kind=supervisor_pb2.COMMAND_KIND_SET_HOSTS,
                begin_time=timestamp(now),
                end_time=timestamp(now),
                done=True,
                steps=[supervisor_pb2.HostStep(host="n2", started=True, time=timestamp(now))],
            )
            changes.note_reports(before.id, [report])
        changes.note_changes((after,))

    return run


def microseconds(endpoint: str) -> float:
    """Median time of one event."""
    tracer = open_tracer("allocator", TracingSettings(endpoint=endpoint))
    run, pause, found = one_event(tracer), threading.Event(), []
    for _ in range(WARM_UP + EVENTS):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
        pause.wait(PAUSE_SECONDS)
    tracer.close()
    return statistics.median(found[WARM_UP:]) * 1e6


def main() -> None:
    """Measure and print."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Accepting(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    figures = {"off_us": microseconds(""), "on_us": microseconds(f"http://127.0.0.1:{port}")}
    server.stop(0).wait()
    figures["collector_away_us"] = microseconds(f"http://127.0.0.1:{port}")
    print(json.dumps({name: round(value, 1) for name, value in figures.items()}, indent=2))


if __name__ == "__main__":
    main()
