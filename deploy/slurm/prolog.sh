#!/bin/bash
# Slurm Prolog: takes the nodes of a job that is about to start back from MalleTrain, before its first command runs.
#
#   slurm.conf:  Prolog=/etc/slurm/prolog.d/malletrain.sh   and   PrologFlags=Alloc
#
# Only for nodes that MalleTrain watches; one-node placeholders in a preemptible partition need no Prolog, as Slurm ends
# them itself. Runs as root on the first start of a job on each node, and gives back just this node, whether or not the
# head node can be reached: a mark says when the node was taken, so that no agent starts any more that is on its way by
# ssh, and one that runs is asked to leave; one that does not leave in time is killed, and the kernel ends its workers.
#
# /etc/malletrain/prolog.conf (shell), all optional:
#   MALLETRAIN_MARKS=/run/malletrain    where the mark is left (scavenger.slurm.hold.marks); made where it is missing
#   MALLETRAIN_SCAVENGER=head:7701      ask the Scavenger, too, where no agent runs on the node; by default nobody is asked
#   MALLETRAIN_GRPCURL=/usr/local/bin/grpcurl   by which it is asked
#   MALLETRAIN_TOKEN_FILE=/etc/malletrain/prolog.token   what the Scavenger is shown: a token of an operator, which
#                                       `malletrain token --user prolog --role operator --lifespan 30d` prints; readable by
#                                       root only, and never on a command line
#   MALLETRAIN_GRPCURL_OPTIONS=(-cacert /etc/malletrain/ca.pem -authority scavenger.malletrain.internal)
#                                       by a copy of the state folder's ca.pem, it is known before it is shown the token
#   MALLETRAIN_DEADLINE_SECONDS=5       how long a job may wait for us at most
#   MALLETRAIN_OWN_PARTITIONS="scavenge"  jobs of these are our own
#
# A node whose Prolog fails is drained by Slurm, and its job is requeued. This one never fails: if MalleTrain does not
# answer in time, the job starts all the same, what happened goes to syslog, and the watching poll ends our workers.
set -u

MALLETRAIN_MARKS=/run/malletrain
MALLETRAIN_GRPCURL=grpcurl
MALLETRAIN_SCAVENGER=
MALLETRAIN_TOKEN_FILE=/etc/malletrain/prolog.token
MALLETRAIN_GRPCURL_OPTIONS=(-cacert /etc/malletrain/ca.pem -authority scavenger.malletrain.internal)
MALLETRAIN_DEADLINE_SECONDS=5
MALLETRAIN_OWN_PARTITIONS=scavenge
config=${MALLETRAIN_PROLOG_CONFIG:-/etc/malletrain/prolog.conf}
# shellcheck source=/dev/null
[[ -r $config ]] && . "$config"

note() { logger -t malletrain-prolog -- "job ${SLURM_JOB_ID:-?} on ${SLURMD_NODENAME:-?}: $*" 2>/dev/null || true; }

for own in $MALLETRAIN_OWN_PARTITIONS; do
  [[ ${SLURM_JOB_PARTITION:-} == "$own" ]] && exit 0
done

node=${SLURMD_NODENAME:-$(hostname -s)}
if [[ ! $node =~ ^[A-Za-z0-9._-]+$ ]]; then
  note "unexpected name of a node"
  exit 0
fi

# Before the agents are looked for: one that starts from now on sees the mark.
{ mkdir -p -m 755 "$MALLETRAIN_MARKS" && : >"$MALLETRAIN_MARKS/$node"; } 2>/dev/null || note "no mark in $MALLETRAIN_MARKS"

agents() { pgrep -f -- "-m malletrain\.agent --node $node( |\$)"; }
if [[ -n $(agents) ]]; then
  # shellcheck disable=SC2046
  kill -TERM $(agents) 2>/dev/null
  for ((waited = 0; waited < MALLETRAIN_DEADLINE_SECONDS * 20; waited++)); do
    [[ -z $(agents) ]] && exit 0
    sleep 0.05
  done
  note "the agent did not leave in time: killed"
  # shellcheck disable=SC2046
  kill -KILL $(agents) 2>/dev/null
  exit 0
fi

[[ -n $MALLETRAIN_SCAVENGER ]] || exit 0
MALLETRAIN_TOKEN=$(cat "$MALLETRAIN_TOKEN_FILE" 2>/dev/null) || note "no token in $MALLETRAIN_TOKEN_FILE"
export MALLETRAIN_TOKEN
# The hold outlasts the time until a poll shows the node as allocated.
# grpcurl replaces the variable: a command line could be read by everybody.
# shellcheck disable=SC2016
answer=$(timeout "$((MALLETRAIN_DEADLINE_SECONDS + 1))" "$MALLETRAIN_GRPCURL" "${MALLETRAIN_GRPCURL_OPTIONS[@]}" \
  -expand-headers -H 'authorization: Bearer ${MALLETRAIN_TOKEN}' \
  -max-time "$MALLETRAIN_DEADLINE_SECONDS" -d "{\"nodes\": [\"$node\"], \"hold_seconds\": 60}" \
  "$MALLETRAIN_SCAVENGER" malletrain.v1.ScavengerService/ReclaimNodes 2>&1)
status=$?
case $status,$answer in
  0,*\"released\"* | 0,*\"unknown\"*) ;;
  0,*) note "the node was not confirmed to be free in time" ;;
  *) note "MalleTrain did not answer (status $status): ${answer:0:200}" ;;
esac
exit 0
