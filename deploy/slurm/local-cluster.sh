#!/usr/bin/env bash
# A real Slurm on this one machine, for tests and for trying things out: `local-cluster.sh up DIR`, `down DIR`.
#
# One slurmctld and NODES slurmd (n001..), all on loopback, with their own munge, all files below DIR; no systemd, and
# /etc/slurm is neither read nor written. Debian's packages (slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge), or
# another Slurm that comes first in PATH.
#   NODES=8 CPUS=1 MEMORY_MB=16000  what each node claims to have
#   WAIT_SECONDS=60 WAIT_NODES=8    how long `up` waits, for how many nodes (all of them)
#   BASE_PORT=16900                 slurmctld listens there, the nodes on the ports after it
#   GRACE_SECONDS=10 KILL_WAIT=5    of the preemptible partition; of the cluster
#   BACKFILL_SECONDS=2              how often backfill runs
#   SCHED_DELAY=0                   batch_sched_delay: how many seconds may lie between an event and its scheduling
#   PROLOG=/path                    run on a node before each job
#   GPU_NODES=0 GPUS=2              so many of the last nodes claim to have so many GPUs, and are a partition of their own
#   RACK=0                          not 0: so many nodes are at a switch of their own (s1, s2..), and all of these at one (topology/tree)
#   SHARED_GPU_NODES=               not empty: jobs in `gpu` and `scavenge` take what they ask for, not whole nodes
# Partitions: `main` (PriorityTier=10, whole nodes, never preempted), `gpu` like it where there are such nodes, and
# `scavenge` (PriorityTier=1, preemptible, all nodes).
set -euo pipefail

fail() { echo "local-cluster: $*" >&2; exit 1; }
(($# == 2)) || fail "use: $0 up|down DIR"
action=$1
mkdir -p "$2"
root=$(cd "$2" && pwd)
nodes=${NODES:-8} base=${BASE_PORT:-16900} gpu_nodes=${GPU_NODES:-0} gpus=${GPUS:-2}
host=$(hostname -s)
((gpu_nodes >= 0 && gpu_nodes < nodes && gpus >= 1)) || fail "expected GPU_NODES below NODES ($nodes), and GPUS of 1 or more"
export SLURM_CONF=$root/slurm.conf

running() { [[ -s $1 ]] && kill -0 "$(<"$1")" 2>/dev/null; }

# Debian calls the binaries slurmd-wlm.., but they find their role by the name they are called by: under that name slurmd
# forgets its generic resources. Links with the plain names make them behave. The first Slurm in PATH is taken, whosever it is:
# its commands are.
link_daemons() {
  mkdir -p "$root/bin"
  local name path
  for name in slurmctld slurmd slurmstepd; do
    path=$(PATH=$PATH:/usr/sbin command -v "$name" || PATH=$PATH:/usr/sbin command -v "$name-wlm") ||
      fail "$name is not installed (apt-get install slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge)"
    ln -sfn "$path" "$root/bin/$name"
  done
}

start_munge() {
  running "$root/munged.pid" && return
  mkdir -p "$root/munge"
  chmod 700 "$root/munge"
  [[ -s $root/munge/key ]] || (umask 077 && head -c 1024 /dev/urandom >"$root/munge/key")
  PATH=$PATH:/usr/sbin munged --force --num-threads=2 --key-file="$root/munge/key" --socket="$root/munge/socket" \
    --seed-file="$root/munge/seed" --log-file="$root/munge/log" --pid-file="$root/munged.pid"
}

nodes_from() { # FIRST LAST [MORE]: a line of slurm.conf; each node has a port of its own
  echo "NodeName=$(names "$1" "$2") NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((base + $1))-$((base + $2))]" \
    "CPUs=${CPUS:-1} Sockets=1 CoresPerSocket=${CPUS:-1} ThreadsPerCore=1 RealMemory=${MEMORY_MB:-16000}" \
    "State=UNKNOWN ${3:-}"
}

names() { printf 'n[%03d-%03d]' "$1" "$2"; }

sharing() { [[ -n ${SHARED_GPU_NODES:-} ]] && echo NO || echo EXCLUSIVE; }

main_partition() { # NAME NODES OVERSUBSCRIBE [MORE]
  echo "PartitionName=$1 Nodes=$2 MaxTime=1-0 DefaultTime=30 PriorityTier=10 PreemptMode=OFF OverSubscribe=$3" \
    "State=UP ${4:-}"
}

write_nodes() {
  local plain=$((nodes - gpu_nodes))
  nodes_from 1 "$plain"
  main_partition main "$(names 1 "$plain")" EXCLUSIVE Default=YES
  rm -f "$root/gres.conf"
  ((gpu_nodes)) || return 0
  nodes_from "$((plain + 1))" "$nodes" "Gres=gpu:$gpus"
  main_partition gpu "$(names "$((plain + 1))" "$nodes")" "$(sharing)"
  echo GresTypes=gpu
  # slurmd counts devices, and goes by the numbers in their names.
  local number
  for number in $(seq 0 "$((gpus - 1))"); do ln -sfn /dev/null "$root/gpu$number"; done
  echo "NodeName=$(names "$((plain + 1))" "$nodes") Name=gpu File=$root/gpu[0-$((gpus - 1))]" >"$root/gres.conf"
}

write_switches() {
  rm -f "$root/topology.conf"
  ((${RACK:-0})) || return 0
  echo TopologyPlugin=topology/tree
  local first last switch=0 switches=
  for ((first = 1; first <= nodes; first = last + 1)); do
    last=$((first + RACK - 1 < nodes ? first + RACK - 1 : nodes)) switch=$((switch + 1))
    echo "SwitchName=s$switch Nodes=$(names "$first" "$last")" >>"$root/topology.conf"
    switches+=${switches:+,}s$switch
  done
  echo "SwitchName=top Switches=$switches" >>"$root/topology.conf"
}

write_config() {
  cat >"$SLURM_CONF" <<CONF
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$base
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket=$root/munge/socket
CredType=cred/munge
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/spool/%n
SlurmctldPidFile=$root/slurmctld.pid
SlurmdPidFile=$root/pids/%n
SlurmctldLogFile=$root/log/slurmctld
SlurmdLogFile=$root/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=1
SlurmdParameters=config_overrides
SlurmdTimeout=30
KillWait=${KILL_WAIT:-5}
MinJobAge=300
${PROLOG:+Prolog=$PROLOG
PrologFlags=Alloc}
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=${BACKFILL_SECONDS:-2},bf_continue,batch_sched_delay=${SCHED_DELAY:-0},sched_interval=5
SelectType=select/cons_tres
SelectTypeParameters=$([[ -n ${SHARED_GPU_NODES:-} ]] && echo CR_CPU_Memory || echo CR_CPU)
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
$(write_nodes)
$(write_switches)
PartitionName=scavenge Nodes=ALL MaxTime=1-0 DefaultTime=30 PriorityTier=1 PreemptMode=CANCEL \\
  GraceTime=${GRACE_SECONDS:-10} OverSubscribe=$(sharing) State=UP
CONF
}

start_slurm() {
  running "$root/slurmctld.pid" || "$root/bin/slurmctld" -f "$SLURM_CONF"
  local number node
  for number in $(seq "$nodes"); do
    node=$(printf 'n%03d' "$number")
    running "$root/pids/$node" && continue
    mkdir -p "$root/spool/$node"
    "$root/bin/slurmd" -N "$node" -d "$root/bin/slurmstepd" -f "$SLURM_CONF"
  done
}

# What sinfo calls a node whose slurmd answers. A dash: backfill plans a job there. A star would mean that it is silent.
UP='(idle|planned|allocated|mixed|completing)-?'

await_nodes() {
  local deadline=$((SECONDS + ${WAIT_SECONDS:-60})) up=0 needed=${WAIT_NODES:-$nodes}
  while ((SECONDS < deadline)); do
    up=$(sinfo -h -N -p scavenge -o '%T' 2>/dev/null | grep -cxE "$UP" || true)
    ((up >= needed)) && return
    sleep 0.2
  done
  sinfo -h -N -p scavenge -o '%N %T (%E)' >&2 || true
  fail "only $up of $needed nodes are up; see $root/log"
}

end() { # PIDFILE..: TERM, then KILL what is left after 5 s
  local file pids=()
  for file in "$@"; do running "$file" && pids+=("$(<"$file")"); done
  ((${#pids[@]})) || return 0
  kill "${pids[@]}" 2>/dev/null || true
  local deadline=$((SECONDS + 5))
  while ((SECONDS < deadline)) && kill -0 "${pids[@]}" 2>/dev/null; do sleep 0.1; done
  kill -KILL "${pids[@]}" 2>/dev/null || true
}

up() {
  link_daemons
  mkdir -p "$root"/{log,state,spool,pids}
  start_munge
  running "$root/slurmctld.pid" || write_config
  start_slurm
  await_nodes
  echo "export SLURM_CONF=$SLURM_CONF"
}

down() {
  if running "$root/slurmctld.pid"; then
    # Jobs outlive slurmd: they go first.
    scancel --signal=KILL --full --user="$(id -un)" 2>/dev/null || true
    scancel --user="$(id -un)" 2>/dev/null || true
    local deadline=$((SECONDS + 10))
    while ((SECONDS < deadline)) && [[ -n $(squeue -h 2>/dev/null) ]]; do sleep 0.2; done
  fi
  shopt -s nullglob
  end "$root"/slurmctld.pid "$root"/pids/*
  # Steps that did not care: each has our configuration's folder in its command line or environment.
  local pid
  for pid in $(pgrep -x slurmstepd || true); do
    tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "SLURM_CONF=$SLURM_CONF" && kill -KILL "$pid" || true
  done
  end "$root/munged.pid"
}

case $action in
  up) up ;;
  down) down ;;
  *) fail "use: $0 up|down DIR" ;;
esac
