"""In which tasks and threads the tests make an error, and for which they do not, and why. FILE:NAME of each."""

from __future__ import annotations

OF_SERVICES = {
    "allocator": (
        "allocator/loop.py:growths to store",
        "allocator/loop.py:jobs",
        "allocator/loop.py:nodes",
        "allocator/loop.py:plans",
        "allocator/loop.py:plans to store",
        "allocator/loop.py:profiles",
        "allocator/loop.py:recording",
        "allocator/service.py:control loop",
        "allocator/service.py:tuner",
        "allocator/service.py:utilization",
        "allocator/utilization/recorder.py:looking at what nodes are used for",
        "allocator/utilization/recorder.py:utilization to store",
        "allocator/utilization/recorder.py:working out minutes",
    ),
    "job_manager": (
        "job_manager/engine.py:changes to store",
        "job_manager/engine.py:progress",
        "job_manager/peers.py:nodes",
        "job_manager/peers.py:progress",
        "job_manager/storage/retention.py:retention by age",
        "job_manager/storage/retention.py:retention by size",
        "job_manager/service.py:certificates",
        "job_manager/service.py:engine",
        "job_manager/service.py:notices",
        "job_manager/service.py:peers",
        "job_manager/service.py:retention",
        "job_manager/service.py:secrets",
        "job_manager/service.py:standby process",
    ),
    "monitor": (
        "monitor/service.py:monitor certificate",
        "monitor/service.py:monitor jobs",
        "monitor/service.py:monitor nodes",
        "monitor/service.py:monitor peers",
        "monitor/service.py:monitor publish",
        "monitor/service.py:monitor store",
        "runtime/admission/connection_limiter.py:return of memory",
        "runtime/admission/connection_limiter.py:watch over connections",
        "runtime/metrics/service_metrics.py:metrics",
        "runtime/process.py:watchdog",
        "runtime/server.py:connections",
    ),
    "profiler": (
        "cli/operate/serve.py:certificates",
        "cli/operate/serve.py:owner's token",
        "cli/operate/serve.py:parent",
        "cli/operate/serve.py:viewer's folder",
        "profiler/service.py:changes to store",
        "profiler/service.py:jobs",
        "profiler/service.py:nodes",
        "profiler/service.py:scaling",
        "profiler/service.py:tell when due",
    ),
    "scavenger": (
        "common/commands.py:command",
        "scavenger/acquisition/agent_registry.py:agents' connections",
        "scavenger/acquisition/agent_registry.py:connections",
        "scavenger/acquisition/held_source.py:certificates",
        "scavenger/acquisition/held_source.py:certificates of agents",
        "scavenger/acquisition/held_source.py:demand",
        "scavenger/acquisition/held_source.py:observations of the scheduler",
        "scavenger/acquisition/held_source.py:placeholders",
        "scavenger/idle_events.py:source",
        "scavenger/idle_events.py:deadlines",
        "scavenger/notifications/notifier.py:receiver of notices of nodes",
        "scavenger/service.py:notices of nodes",
        "scavenger/service.py:slow nodes",
        "scavenger/sources/schedulers/polled.py:a query of the scheduler",
    ),
}
OF_AGENTS = ("agent/agent.py:registration", "agent/agent.py:poll", "agent/agent.py:standstill")
OF_REGISTRATIONS = ("agent/registration.py:heartbeats", "agent/registration.py:sending to the registry")
END_SUPERVISORS = (
    ("horovod", "supervisor/elastic/horovod_backend.py:rendezvous"),
    ("horovod", "supervisor/elastic/horovod_backend.py:notices"),
    ("plain-horovod", "supervisor/restarting/plain_horovod_backend.py:rendezvous"),
    ("torchrun", "supervisor/rendezvous/guarded_store.py:store"),
)
EFFECT = "job_manager/effect_runner.py:effect"
TOLD_BY_SUPERVISORS = ("supervisor/restarting/torchrun_backend.py:import torch",)
REPAIRED_BY_SUPERVISORS = ("supervisor/workers/agent_links.py:agent of *",)
# Those of which no test here makes an error, and why.
_BRIEF = "belongs to one call or event, in the same group as `effect`"
_PAGE = "of the dashboard, which logs the error and makes the page or the figures anew"
ELSEWHERE = {
    "agent/agent.py:preemption": "ends after one answer of Slurm; the crew is that of `poll`",
    "agent/report_forwarder.py:report forwarder": "ends once its server has started; the error is logged",
    "agent/sweeps.py:sweep of *": "tests/agent/test_sweeps.py",
    "common/log_times.py:times of logs": "tests/common/test_log_times.py",
    "common/user_threads.py:of user *": "its caller gets the error; tests/hostile/test_event_loop.py",
    "dashboard/replays.py:replay": _PAGE,
    "dashboard/server/context.py:page": _PAGE,
    "dashboard/server/server.py:refresh": "ends the dashboard, as the groups of services end these",
    "dashboard/server/server.py:verify": "ends the dashboard, as the groups of services end these",
    "dashboard/server/documents.py:prepared page": _PAGE,
    "observer/watching.py:watching": "ends the dashboard, as the groups of services end these",
    "job_manager/effect_runner.py:notice": _BRIEF,
    "job_manager/effect_runner.py:report of failures": _BRIEF,
    "runtime/database/postgresql.py:database": "only during outages; test_a_service_ends_whose_outage_would_not_end",
    "runtime/plain_reports.py:_pump()": "belongs to one connection, which ends with it",
    "runtime/tracing/otlp.py:last-spans": "at the end of the process, which waits for it for some seconds only",
    "supervisor/__main__.py:stop": "at SIGTERM; test_a_supervisor_ends_although_its_stop_has_failed",
    "supervisor/rendezvous/guarded_store.py:connection to the store": "belongs to one connection, which ends with it",
}
