#!/usr/bin/env bash
# A real OpenPBS on this one machine, for tests and for trying things out: `local-cluster.sh up DIR`, `down DIR`.
#
# Server, scheduler and pbs_comm run here; each of NODES moms (p001..) in a network and a UTS namespace of its own, with an address
# of its own: to PBS and to MalleTrain they are other machines. All files are below DIR; no systemd, and /etc/pbs.conf is neither
# read nor written. Needs root, iproute2, Debian's PostgreSQL (whose programs OpenPBS runs by itself) and an OpenPBS:
#   PBS_EXEC=/opt/pbs               where it is
#   NODES=4 CPUS=4                  moms; what each claims to have
#   GPUS=0                          GPUs that each claims to have; gpu_numbers_hook.py tells jobs which are theirs
#   NET=10.214.0                    first three numbers of the addresses: head .1, nodes .11, .12..
#   PREPARE=true                    a command that each node runs before its mom, in namespaces of its own for network and mounts
#   WAIT_SECONDS=60                 how long `up` waits for the nodes
# Queues: `main`, and `scavenge` as docs/operators/pbs.md has it, for root. DIR must be below folders that every account may enter:
# the database runs as postgres; and PBS refuses folders below one that everybody may write, such as /tmp. /etc/hosts gets a marked block, which `down` removes. One at a time: ports are those of PBS.
set -euo pipefail

fail() { echo "local-cluster: $*" >&2; exit 1; }
(($# == 2)) || fail "use: $0 up|down DIR"
action=$1
mkdir -p "$2"
root=$(cd "$2" && pwd)
nodes=${NODES:-4} cpus=${CPUS:-4} gpus=${GPUS:-0} net=${NET:-10.214.0} bridge=mtpbs0 head=pbs-head
PBS_EXEC=${PBS_EXEC:-/opt/pbs}
[[ $(id -u) == 0 ]] || fail "needs root"
[[ -x $PBS_EXEC/sbin/pbs_server.bin ]] || fail "no OpenPBS in $PBS_EXEC (set PBS_EXEC)"
folder=$root
while [[ $folder != / ]]; do
  folder=$(dirname "$folder")
  [[ $(stat -c %A "$folder") != *w? ]] || fail "PBS refuses $root: everybody may write $folder. Take a folder such as /srv/pbs"
done
export PBS_EXEC PBS_CONF_FILE=$root/pbs.conf
export PATH=/usr/sbin:/sbin:$PATH:$PBS_EXEC/bin:$PBS_EXEC/sbin
unset PBS_SERVER PBS_HOME
home=$root/home

name_of() { printf 'p%03d' "$1"; }

pid_of() { # LOCKFILE NAME: the daemon's process, if it is one
  local pid
  pid=$(tr -dc 0-9 2>/dev/null <"$1") || return 1
  [[ -n $pid && $(cat "/proc/$pid/comm" 2>/dev/null) == "$2"* ]] && ! grep -q '^State:.*[ZX] ' "/proc/$pid/status" && echo "$pid"
}
running() { [[ -n $(pid_of "$1" "$2" 2>/dev/null) ]]; }

without_block() { sed '/^# malletrain-pbs begin/,/^# malletrain-pbs end/d' /etc/hosts; }
write_hosts() { # is bind-mounted in containers: written in place
  local text
  text=$(without_block; "$@")
  printf '%s\n' "$text" >/etc/hosts
}
block() {
  echo "# malletrain-pbs begin"
  echo "$net.1 $head"
  local number
  for number in $(seq "$nodes"); do echo "$net.$((10 + number)) $(name_of "$number")"; done
  echo "# malletrain-pbs end"
}

make_networks() {
  ip link show "$bridge" &>/dev/null || ip link add "$bridge" type bridge
  ip addr show dev "$bridge" | grep -q "inet $net.1/" || ip addr add "$net.1/24" dev "$bridge"
  ip link set "$bridge" up
  local number node
  for number in $(seq "$nodes"); do
    node=$(name_of "$number")
    [[ -e /run/netns/$node ]] && continue
    ip netns add "$node"
    ip link add "mt$node" type veth peer name eth0 netns "$node"
    ip link set "mt$node" master "$bridge" up
    ip -n "$node" addr add "$net.$((10 + number))/24" dev eth0
    ip -n "$node" link set lo up
    ip -n "$node" link set eth0 up
  done
}

write_config() { # FILE HOME LEAF SERVER MOM
  cat >"$1" <<CONF
PBS_EXEC=$PBS_EXEC
PBS_HOME=$2
PBS_SERVER=$head
PBS_LEAF_NAME=$3
PBS_START_SERVER=$4
PBS_START_SCHED=$4
PBS_START_COMM=$4
PBS_START_MOM=$5
PBS_MOM_NODE_NAME=$3
PBS_CORE_LIMIT=0
PBS_RCP=/bin/false
PBS_SCP=/bin/cp
CONF
  chmod 644 "$1"
}

folders() { # HOME NAME:MODE..
  local entry
  for entry in "${@:2}"; do install -d -m "${entry#*:}" "$1/${entry%:*}"; done
  printf 'PATH=/bin:/usr/bin\n' >"$1/pbs_environment"
}

make_home() {
  [[ -d $home/datastore ]] && return
  folders "$home" server_logs:0755 spool:1777 server_priv:0750 server_priv/accounting:0755 server_priv/jobs:0750 \
    server_priv/users:0750 server_priv/hooks:0750 server_priv/hooks/tmp:0750 sched_logs:0755 sched_priv:0750 comm_logs:0755
  cp -p "$PBS_EXEC"/lib*/python/altair/pbs_hooks/* "$home/server_priv/hooks" 2>/dev/null || true
  rm -f "$home"/server_priv/hooks/PBS_xeon_phi_provision.*
  (umask 077 && printf postgres >"$home/server_priv/db_user")
  local file
  for file in dedicated:dedicated_time holidays:holidays resource_group:resource_group sched_config:sched_config; do
    cp "$PBS_EXEC/etc/pbs_${file%:*}" "$home/sched_priv/${file#*:}"
  done
  sed -i -E '/^(preemptive_sched|strict_ordering):/d' "$home/sched_priv/sched_config"
  printf 'preemptive_sched: true ALL\nstrict_ordering: true ALL\n' >>"$home/sched_priv/sched_config"
  # pbs_habitat does not wait for the database that it has started: on a busy machine it comes too soon.
  local try
  for try in 1 2 3 4 5; do
    "$PBS_EXEC/libexec/pbs_habitat" >"$root/habitat.log" 2>&1 && return
    stop_database
    rm -rf "$home/datastore"
  done
  fail "pbs_habitat fails: $(tail -3 "$root/habitat.log")"
}

stop_database() {
  timeout 30 pbs_dataservice stop &>/dev/null || true
  local pid
  pid=$(head -1 "$home/datastore/postmaster.pid" 2>/dev/null) && [[ $(cat "/proc/$pid/comm" 2>/dev/null) == postgres ]] &&
    kill -QUIT "$pid" 2>/dev/null || true
  for pid in $(pgrep -x pbs_ds_monitor || true); do
    tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -qx "PBS_CONF_FILE=$PBS_CONF_FILE" && kill -KILL "$pid" || true
  done
}

start_server() {
  running "$home/server_priv/comm.lock" pbs_comm || pbs_comm >>"$root/start.log" 2>&1 || fail "pbs_comm: $(tail -3 "$root/start.log")"
  running "$home/sched_priv/sched.lock" pbs_sched || pbs_sched >>"$root/start.log" 2>&1
  running "$home/server_priv/server.lock" pbs_server || pbs_server >>"$root/start.log" 2>&1 ||
    fail "pbs_server does not start: $(tail -3 "$root/start.log")"
  local deadline=$((SECONDS + 30))
  until qstat -B &>/dev/null; do
    ((SECONDS < deadline)) || fail "the server does not answer; see $home/server_logs"
    sleep 0.2
  done
}

start_moms() {
  local number node place
  for number in $(seq "$nodes"); do
    node=$(name_of "$number") place=$root/nodes/$(name_of "$number")
    running "$place/mom_priv/mom.lock" pbs_mom && continue
    folders "$place" aux:0755 checkpoint:0700 mom_logs:0755 mom_priv:0751 mom_priv/jobs:0751 mom_priv/hooks:0750 \
      mom_priv/hooks/tmp:0750 spool:1777 undelivered:1777
    printf '$clienthost %s\n$usecp *:/ /\n$restrict_user_maxsysid 999\n' "$head" >"$place/mom_priv/config"
    write_config "$place/pbs.conf" "$place" "$node" 0 1
    PBS_CONF_FILE=$place/pbs.conf ip netns exec "$node" unshare --uts \
      sh -c "hostname $node && { ${PREPARE:-true}; } && exec '$PBS_EXEC/sbin/pbs_mom'" </dev/null >>"$root/start.log" 2>&1 ||
      fail "pbs_mom of $node does not start: $(tail -3 "$root/start.log")"
  done
}

configure() {
  [[ -e $root/configured ]] && return
  qmgr >"$root/qmgr.log" 2>&1 <<'QMGR' || fail "qmgr: $(tail -3 "$root/qmgr.log")"
create queue main queue_type=execution
set queue main enabled=True
set queue main started=True
set queue main Priority = 200
create queue scavenge queue_type=execution
set queue scavenge Priority = 1
set queue scavenge acl_user_enable = True
set queue scavenge acl_users = root
set queue scavenge resources_default.soft_walltime = 00:01:00
set queue scavenge enabled = True
set queue scavenge started = True
set queue main resources_default.preempt_targets = "queue=scavenge"
set server default_queue=main
set server flatuid=True
set server acl_roots=root
set server query_other_jobs = True
set server backfill_depth = 5
set server job_history_enable = True
set sched preempt_queue_prio = 150
set sched preempt_prio = 'express_queue, normal_jobs'
set sched preempt_order = D
QMGR
  local number
  if ((gpus)); then
    qmgr >>"$root/qmgr.log" 2>&1 <<QMGR || fail "qmgr: $(tail -3 "$root/qmgr.log")"
create resource ngpus type=long, flag=nh
create hook gpu_numbers event='execjob_launch,execjob_end'
import hook gpu_numbers application/x-python default $(dirname "$(readlink -f "$0")")/gpu_numbers_hook.py
QMGR
    sed -i -E '/^resources:.*ngpus/! s/^(resources: "[^"]*)"/\1, ngpus"/' "$home/sched_priv/sched_config"
  fi
  for number in $(seq "$nodes"); do
    qmgr -c "create node $(name_of "$number") resources_available.ncpus=$cpus$( ((gpus)) && echo ",resources_available.ngpus=$gpus")" >>"$root/qmgr.log" 2>&1 || fail "$(tail -1 "$root/qmgr.log")"
  done
  kill -HUP "$(pid_of "$home/sched_priv/sched.lock" pbs_sched)"
  touch "$root/configured"
}

await_nodes() {
  local deadline=$((SECONDS + ${WAIT_SECONDS:-60})) up=0
  while ((SECONDS < deadline)); do
    up=$(pbsnodes -a 2>/dev/null | grep -cE '^ +state = (free|job|offline|resv)' || true)
    ((up >= nodes)) && return
    sleep 0.2
  done
  fail "only $up of $nodes nodes are up; see $home/server_logs and $root/nodes"
}

up() {
  write_hosts block
  make_networks
  write_config "$PBS_CONF_FILE" "$home" "$head" 1 0
  make_home
  start_server
  start_moms
  configure
  await_nodes
  echo "export PBS_CONF_FILE=$PBS_CONF_FILE PATH=\$PATH:$PBS_EXEC/bin:$PBS_EXEC/sbin"
}

down() {
  shopt -s nullglob
  local identifier pids=() pid lock deadline
  if running "$home/server_priv/server.lock" pbs_server; then
    # One at a time: two ids, one of which had ended, made a server crash.
    for identifier in $(timeout 10 qselect 2>/dev/null); do timeout 10 qdel -W force "$identifier" 2>/dev/null || true; done
    timeout 20 qterm -t quick 2>/dev/null || true
  fi
  for lock in "$root"/nodes/*/mom_priv/mom.lock; do pids+=($(pid_of "$lock" pbs_mom || true)); done
  pids+=($(pid_of "$home/sched_priv/sched.lock" pbs_sched || true) $(pid_of "$home/server_priv/server.lock" pbs_server || true))
  ((${#pids[@]})) && kill "${pids[@]}" 2>/dev/null || true
  deadline=$((SECONDS + 8))
  for pid in "${pids[@]}"; do
    while ((SECONDS < deadline)) && kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
  done
  [[ ! -d $home ]] || stop_database
  pid=$(pid_of "$home/server_priv/comm.lock" pbs_comm || true)
  [[ -z $pid ]] || kill -KILL "$pid" 2>/dev/null || true
  local link node
  for link in /sys/class/net/mtp[0-9][0-9][0-9]; do
    node=${link##*/mt}
    [[ -e /run/netns/$node ]] || continue
    for pid in $(ip netns pids "$node"); do kill -KILL "$pid" 2>/dev/null || true; done # what jobs have left behind
    ip netns del "$node"
    ip link del "mt$node" 2>/dev/null || true
  done
  ip link del "$bridge" 2>/dev/null || true
  write_hosts true
}

case $action in
  up) up ;;
  down) down ;;
  *) fail "use: $0 up|down DIR" ;;
esac
