"""Plans: whether one fits the present state, what of it fits, and how what jobs have is brought to what is wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from malletrain.common.gpus import gpu_number, node_of
from malletrain.job_manager.machine.admitting import admit
from malletrain.job_manager.machine.dependencies import follow_dependencies
from malletrain.job_manager.machine.job_marks import JobMark, is_settled
from malletrain.job_manager.machine.job_table import Claims
from malletrain.job_manager.machine.jobs import MAX_GPUS_PER_NODE, Job, StopIntent, after_failure, within, without
from malletrain.job_manager.machine.state import Notice, Omission
from malletrain.job_manager.machine.stimuli import PlanReceived
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import StalePlanError


def apply_plan(transaction: Transaction, plan: PlanReceived) -> tuple[tuple[str, ...], tuple[Omission, ...]]:
    """Make the nodes of a plan the wanted nodes of its jobs, or refuse it.

    A plan that may be applied in part is refused only if nothing of it fits that would change anything.

    Returns:
        Identifiers of the jobs whose nodes it changes, and what was left out.

    Raises:
        StalePlanError: the plan does not fit the present state; the message names the job or the node.
    """
    _check_header(transaction, plan)
    parts, omissions = _fitting(transaction, plan)
    rescaled = [job_id for job_id, nodes in parts.items() if set(nodes) != set(transaction.jobs[job_id].wanted)]
    if omissions and not (plan.partial and rescaled):
        raise StalePlanError(omissions[0].reason)
    # Also of a plan that is applied in part: an earlier one that comes late must not undo it.
    transaction.generation = plan.generation
    for job_id in rescaled:
        transaction.put(transaction.jobs[job_id], wanted=parts[job_id], plan_generation=plan.generation)
    return tuple(rescaled), omissions


def _check_header(transaction: Transaction, plan: PlanReceived) -> None:
    if plan.generation <= transaction.generation:
        raise StalePlanError(
            f"generation {plan.generation}: expected above {transaction.generation}, the last one applied"
        )
    if transaction.idle is None:
        raise StalePlanError("the idle nodes are not known yet: Scavenger has not told them")
    named = Counter(job_id for job_id, _ in plan.assignments)
    if twice := sorted(job_id for job_id, count in named.items() if count > 1):
        raise StalePlanError(f"job {twice[0]} is named twice")


def _fitting(transaction: Transaction, plan: PlanReceived) -> tuple[dict[str, tuple[str, ...]], tuple[Omission, ...]]:
    """The part of a plan that fits: nodes by job, and what was left out. Parts that change nothing are not named.

    A job whose part does not fit keeps the nodes that are wanted for it, so that these can't be another's. That may
    in turn leave something of another part out, until nothing changes any more.
    """
    parts: dict[str, tuple[str, ...]] = {}
    omissions: list[Omission] = []
    changed: set[str] = set()
    for job_id, nodes in plan.assignments:
        job = transaction.jobs.get(job_id)
        # A part that changes nothing is not checked: a job may keep what it could not be given anew.
        if job is None or nodes != job.wanted:
            if objection := objection_to(transaction, job_id, nodes):
                omissions.append(Omission(job_id, nodes, objection))
                continue
            if job is not None and migrates(job, idle_of(transaction, nodes)):
                planned, nodes = nodes, with_present_nodes(job, nodes)
                omissions.append(Omission(job_id, without(planned, nodes), migration_refusal(job_id)))
            if job is None or nodes != job.wanted:
                changed.add(job_id)
        if job is not None:
            parts[job_id] = nodes
    # Only a job on the same nodes can lose some to a part that changes something: all others stay as they are.
    disputed = transaction.jobs.on_nodes({node_of(name) for job_id in changed for name in parts.get(job_id, ())})
    looked_at = changed.union(job.id for job in disputed)
    parts = {job_id: nodes for job_id, nodes in parts.items() if job_id in looked_at}
    # What other jobs want stays theirs; what the jobs of these parts wanted so far is open to all of them.
    others = transaction.jobs.wanted.copy()
    for job_id in parts:
        others.remove(transaction.jobs[job_id], transaction.jobs[job_id].wanted)
    unusable = unusable_nodes(transaction)
    while not _drop_what_is_lost(transaction, parts, omissions, unusable, others):
        pass
    return parts, tuple(omissions)


def _drop_what_is_lost(
    transaction: Transaction,
    parts: dict[str, tuple[str, ...]],
    omissions: list[Omission],
    unusable: frozenset[str],
    others: Claims,
) -> bool:
    """Go once through the parts of a plan, and take from them what does not fit.

    Args:
        parts: Nodes by job; changed.
        omissions: What was left out; added to.
        unusable: Idle nodes that nobody can have yet.
        others: What is wanted for jobs that are not among the parts; those that are dropped are added.

    Returns:
        True: no further pass is needed. False: a job was dropped, and an earlier part has been given nodes of it.
    """
    owners = others.copy()
    for job_id, nodes in tuple(parts.items()):
        job = transaction.jobs[job_id]
        lost = lost_nodes(transaction, job, nodes, unusable, owners)
        fitting = reduce_part(job, nodes, lost) if lost else nodes
        if fitting is None:
            del parts[job_id]
            left_out = without(nodes, job.wanted)
            omissions.append(Omission(job_id, left_out, next(iter(lost.values()))))
            others.add(job, job.wanted)
            if any(owners.has_rival(job, name) for name in job.wanted):
                return False
            fitting = job.wanted
        elif lost:
            parts[job_id] = fitting
            left_out = without(nodes, fitting)
            omissions.append(Omission(job_id, left_out, next(iter(lost.values()))))
        owners.add(job, fitting)
    return True


def objection_to(transaction: Transaction, job_id: str, nodes: tuple[str, ...]) -> str:
    """Why a job can't be given nodes as a plan says; empty if it can."""
    job = transaction.jobs.get(job_id)
    # All nodes can be taken from any job, also from one that has ended since the plan was made.
    if not nodes and (job is None or not job.keeps_scale):
        return ""
    if job is None or job.state.final:
        return f"job {job_id} is unknown or has ended"
    if not job.admitted:
        return f"job {job_id} is not admitted"
    if job.stop in (StopIntent.CANCEL, StopIntent.COMPLETE) or job.target_reached:
        return f"job {job_id} is ending: {job.reason}"
    if job.not_before is not None and transaction.now < job.not_before:
        return f"job {job_id} gets no nodes for another {job.not_before - transaction.now:.1f} s: {job.reason}"
    if job.keeps_scale and set(nodes) != set(job.commanded):
        return f"job {job_id} keeps its scale until a save has succeeded: its newest one failed ({job.save_error})"
    if not nodes:
        return ""
    if wrong := _wrong_names(job, nodes):
        return wrong
    spec = job.spec
    if not spec.permits(len(nodes)):
        sizes = f"one of {list(spec.permitted_nodes)}" if spec.permitted_nodes else f"{spec.min_nodes}-{spec.max_nodes}"
        units = "nodes" if job.fleet_number is None else "GPUs"
        return f"job {job_id}: expected {sizes} {units}, got {len(nodes)}"
    if len(nodes) in job.left_out_scales and len(nodes) != len(job.commanded):
        return f"job {job_id}: {job.in_words(len(nodes))} are left out for a while, since its script fails there"
    if migrates(job, idle_of(transaction, nodes)) and spec.grouped_nodes > 1:
        return migration_refusal(job_id)
    return ""


def migration_refusal(job_id: str) -> str:
    """That a job would migrate, for people."""
    return f"job {job_id}: expected to gain or to lose nodes, not both at once"


def with_present_nodes(job: Job, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """As many nodes as a plan gives to a job, of those that are wanted for it first, so that it does not move.

    The plan was made when other nodes were wanted for it, or commanded; what it is about is how many it is to have.
    """
    planned = frozenset(nodes)
    kept = (*within(job.wanted, planned), *without(job.wanted, planned))[: len(nodes)]
    return (*within(job.wanted, kept), *without(nodes, job.wanted)[: len(nodes) - len(kept)])


def _wrong_names(job: Job, nodes: tuple[str, ...]) -> str:
    """Members of a fleet have GPUs, all other jobs have nodes, and each of them once."""
    if twice := next((name for name, count in Counter(nodes).items() if count > 1), ""):
        return f"job {job.id}: expected each node or GPU once, got {twice} twice"
    if job.spec.fleet is None:
        return next((f"job {job.id}: expected nodes, got GPU {name}" for name in nodes if node_of(name) != name), "")
    limit = job.spec.fleet.gpus_per_node or MAX_GPUS_PER_NODE
    for name in nodes:
        number = gpu_number(name)
        if number is None:
            return f"job {job.id}: expected GPUs, as for every member of a fleet, got node {name}"
        if number >= limit:
            return f"job {job.id}: expected GPUs with numbers below {limit}, got {name}"
    return ""


def migrates(job: Job, after: tuple[str, ...]) -> bool:
    """Whether a job would both gain and lose nodes. Members of a fleet may: flotillas are made for all at once."""
    return job.fleet_number is None and all(
        set(before) - set(after) and set(after) - set(before) for before in (job.wanted, job.commanded)
    )


def idle_of(transaction: Transaction, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of some nodes that are idle.

    A plan that was made before a node left may still name it as kept: it is held, and not gained.
    """
    idle = transaction.idle or frozenset()
    return tuple(name for name in nodes if node_of(name) in idle)


def unusable_nodes(transaction: Transaction) -> frozenset[str]:
    """Nodes that have left and are still being released: they may be idle again before the processes there end."""
    jobs = transaction.jobs.marked(JobMark.COMMANDED)
    return frozenset(node_of(release.node) for job in jobs for release in job.releases if release.left)


def lost_nodes(
    transaction: Transaction,
    job: Job,
    nodes: tuple[str, ...],
    unusable: frozenset[str],
    owners: Claims,
) -> dict[str, str]:
    """Nodes or GPUs that a job can't have, and why."""
    idle = transaction.idle or frozenset()
    lost = {}
    for name in nodes:
        what = f"{'node' if job.fleet_number is None else 'GPU'} {name} (for job {job.id})"
        if node_of(name) not in idle:
            lost[name] = f"{what} is not idle"
        elif node_of(name) in unusable:
            lost[name] = f"{what} is still being released"
        elif owner := owners.holder(job, name):
            lost[name] = f"{what} is {owner}'s"
    return lost


def reduce_part(job: Job, nodes: tuple[str, ...], lost: Mapping[str, str]) -> tuple[str, ...] | None:
    """The largest permitted scale on what remains; nodes that the job has are kept first. None if there is none."""
    remaining = job.whole(nodes, without(nodes, lost))
    fitting = within(remaining, first_whole(job, remaining, frozenset(job.commanded)))
    if not fitting or migrates(job, fitting):
        return None
    return fitting


def first_whole(job: Job, nodes: Sequence[str], preferred: Collection[str]) -> tuple[str, ...]:
    """The largest permitted scale on some of a job's nodes; the preferred ones are taken first.

    Args:
        nodes: Its nodes, as `Job.whole` takes them.
        preferred: Nodes.
    """
    size = job.spec.grouped_nodes
    replicas = [nodes[first : first + size] for first in range(0, len(nodes), size)]
    replicas.sort(key=lambda replica: sum(node not in preferred for node in replica))
    ordered = tuple(node for replica in replicas for node in replica)
    return ordered[: job.max_within(len(ordered))]


def reconcile(transaction: Transaction, only: str | None = None) -> None:
    """Bring every job as far as possible now: shrinks and stops before growths and starts, admission last.

    Args:
        transaction: What has happened.
        only: Identifier of the one job that has changed, where nothing has happened that others may wait for: no node
            has moved, and none has become free.
    """
    # A settled job stays so until it is changed, and each step changes only the job that it is for.
    unsettled = [job.id for job in transaction.jobs.marked(JobMark.UNSETTLED)] if only is None else [only]
    for step in (_end_if_target_reached, _shrink_or_stop, _grow_or_start):
        for job in [transaction.jobs[name] for name in unsettled]:
            if not is_settled(job) and not job.state.final:
                step(transaction, job)
    # Last, since the steps above may end jobs: others no longer wait for these, and get their places.
    follow_dependencies(transaction)
    admit(transaction)


def _end_if_target_reached(transaction: Transaction, job: Job) -> None:
    if not job.target_reached or not job.admitted:
        return
    reason = f"reached its target of {job.spec.target_samples} samples"
    if job.has_supervisor:
        transaction.stop(job, StopIntent.COMPLETE, JobReason.TARGET_REACHED, reason)
    else:
        transaction.finish(job, JobState.COMPLETED, JobReason.TARGET_REACHED, reason)


def _shrink_or_stop(transaction: Transaction, job: Job) -> None:
    if not job.supervised or job.stop is not None or job.keeps_scale:
        return
    if not job.wanted:
        reason = f"plan {job.plan_generation}: no nodes"
        transaction.stop(job, StopIntent.WAIT, JobReason.PLAN_NO_NODES, reason)
        return
    surplus = set(job.commanded) - set(job.wanted)
    # A change under way ends first: until it is confirmed, it is not known which workers have the state.
    if job.state is not JobState.RUNNING or not surplus:
        return
    staying = within(job.commanded, job.wanted)
    gained = _gained_nodes(job)
    available = bool(gained) and _are_free(transaction, job, gained)
    if available:
        staying += gained  # in one command: with two, the job would stand still twice
    if job.spec.grouped_nodes > 1:
        staying = job.whole(job.wanted, staying)  # the plan's order says which nodes make a replica
    if staying and not (available or job.may_have(len(staying))):
        # The new scale needs nodes that are not free yet, and the scale without them is not permitted.
        _move_by_restart(transaction, job)
        return
    if not set(staying).intersection(job.trained):
        # New workers get the state from one that has trained; none of those would stay.
        _move_by_restart(transaction, job)
        return
    _rescale(transaction, job, staying)


def _move_by_restart(transaction: Transaction, job: Job) -> None:
    reason = f"plan {job.plan_generation}: moves over a restart"
    transaction.stop(job, StopIntent.WAIT, JobReason.PLAN_MOVED, reason, job.wanted)


def _grow_or_start(transaction: Transaction, job: Job) -> None:
    if job.state is JobState.WAITING and job.wanted and _may_start(transaction, job):
        _start(transaction, job)
    if job.state is JobState.RUNNING and not (job.keeps_scale or set(job.commanded) - set(job.wanted)):
        gained = _gained_nodes(job)
        # Once all of them are free: with each part of them the job would stand still anew.
        if gained and _are_free(transaction, job, gained):
            # The plan's order says which nodes make a replica; otherwise the first one stays the first.
            _rescale(transaction, job, job.wanted if job.spec.grouped_nodes > 1 else job.commanded + gained)


def _may_start(transaction: Transaction, job: Job) -> bool:
    eligible = job.not_before is None or transaction.now >= job.not_before
    return eligible and not job.supervised and _are_free(transaction, job, job.wanted)


def _gained_nodes(job: Job) -> tuple[str, ...]:
    return without(job.wanted, job.commanded)


def _are_free(transaction: Transaction, job: Job, nodes: tuple[str, ...]) -> bool:
    # Not even by this job itself: its processes of before may still be ending there.
    holders, idle = transaction.jobs.held, transaction.idle
    return idle is not None and all(node_of(node) in idle and not holders.holder(job, node) for node in nodes)


def _start(transaction: Transaction, job: Job) -> None:
    transaction.move(
        job,
        JobState.STARTING,
        JobReason.PLAN_STARTED,
        f"plan {job.plan_generation}: starts on {job.in_words(len(job.wanted))}{after_failure(job)}",
        commanded=job.wanted,
        held=job.wanted,
        # A new supervisor has a number of its own, so that what the one before still says is ignored.
        incarnation=job.incarnation if job.kept else job.incarnation + 1,
        supervised=True,
        serving=job.kept,
        sequence=job.sequence + 1,
        changed_at=transaction.now,
        scale_command=job.commanding(len(job.wanted), transaction.now),
        preempted=False,
        not_before=None,
        done_since=None,
    )


def _rescale(transaction: Transaction, job: Job, nodes: tuple[str, ...]) -> None:
    transaction.notices.append((job.id, Notice.RESCALE_COMING, len(nodes)))
    transaction.move(
        job,
        JobState.RESCALING,
        JobReason.PLAN_RESCALED,
        f"plan {job.plan_generation}: from {len(job.commanded)} to {job.in_words(len(nodes))}",
        commanded=nodes,
        # Nodes that it gives up stay its own until no process of it is left there.
        held=job.held + without(nodes, job.held),
        sequence=job.sequence + 1,
        changed_at=transaction.now,
        scale_command=job.commanding(len(nodes), transaction.now),
        rescales=job.rescales + 1,
    )
