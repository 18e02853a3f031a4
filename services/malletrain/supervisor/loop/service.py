"""The supervisor's gRPC service: JobManager's commands in, states out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from malletrain.common.launch_file import AgentAddress
from malletrain.supervisor.loop.event_loop import EventLoop, Keep
from malletrain.v1 import supervisor_pb2, supervisor_pb2_grpc


class PublishedState:
    """The newest state, and waiting for the next."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._state = supervisor_pb2.SupervisorState()
        self._version = 0

    def publish(self, state: supervisor_pb2.SupervisorState) -> None:
        """Publish a new state."""
        with self._changed:
            self._state, self._version = state, self._version + 1
            self._changed.notify_all()

    def newest(self) -> supervisor_pb2.SupervisorState:
        """The newest state."""
        with self._changed:
            return self._state

    def changes(self, alive: Any) -> Iterator[supervisor_pb2.SupervisorState]:
        """The newest state, then every one that follows, until it is ENDED or `alive()` is false."""
        seen = -1
        while alive():
            with self._changed:
                self._changed.wait_for(lambda: self._version != seen, timeout=1.0)  # noqa: B023  # called at once
                if self._version == seen:
                    continue
                seen, state = self._version, self._state
            yield state
            if state.phase == supervisor_pb2.SUPERVISOR_PHASE_ENDED:
                return


class SupervisorService(supervisor_pb2_grpc.SupervisorServiceServicer):
    """Passes commands to the event loop."""

    def __init__(self, event_loop: EventLoop, published: PublishedState, slots_per_node: int) -> None:
        """
        Args:
            slots_per_node: Worker processes on every host of the job.
        """
        self._slots = slots_per_node
        self._event_loop = event_loop
        self._published = published

    def GetState(self, request: Any, context: Any) -> supervisor_pb2.GetStateResponse:
        """The present state."""
        del request, context
        return supervisor_pb2.GetStateResponse(state=self._published.newest())

    def WatchState(self, request: Any, context: Any) -> Iterator[supervisor_pb2.WatchStateResponse]:
        """The present state, then every change."""
        del request
        for state in self._published.changes(context.is_active):
            yield supervisor_pb2.WatchStateResponse(state=state)

    def SetHosts(
        self, request: supervisor_pb2.SetHostsRequest, context: grpc.ServicerContext
    ) -> supervisor_pb2.SetHostsResponse:
        """Use these hosts from now on."""
        hosts = {host.name: host.slots for host in request.hosts}
        agents = {host.name: AgentAddress(host.agent, host.agent_name) for host in request.hosts}
        if not hosts:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "hosts: expected at least one (use Stop for none)")
        for index, host in enumerate(request.hosts):
            if host.slots != self._slots:
                message = f"hosts[{index}].slots: expected {self._slots} as launched, got {host.slots}"
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        traceparent = request.trace_context.traceparent
        state = self._event_loop.set_hosts(request.sequence, hosts, agents, traceparent)
        return supervisor_pb2.SetHostsResponse(state=state)

    def ReleaseHosts(
        self, request: supervisor_pb2.ReleaseHostsRequest, context: grpc.ServicerContext
    ) -> supervisor_pb2.ReleaseHostsResponse:
        """Take hosts out of the job now."""
        del context
        grace, traceparent = max(0.0, request.grace_seconds), request.trace_context.traceparent
        state = self._event_loop.release_hosts(frozenset(request.hosts), grace, traceparent)
        return supervisor_pb2.ReleaseHostsResponse(state=state)

    def Stop(self, request: supervisor_pb2.StopRequest, context: grpc.ServicerContext) -> supervisor_pb2.StopResponse:
        """End the job's workers, then the supervisor."""
        del context
        grace, traceparent = max(0.0, request.grace_seconds), request.trace_context.traceparent
        keep = Keep(request.keep_seconds, request.sequence) if request.keep_seconds > 0 else None
        return supervisor_pb2.StopResponse(state=self._event_loop.stop(grace, traceparent, keep))
