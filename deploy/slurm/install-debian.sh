#!/usr/bin/env bash
# Debian's Slurm, for tests on one machine: nothing is configured, no daemon is left running. Exits with 3, and says why,
# where it can't be installed.
set -euo pipefail

export PATH=$PATH:/usr/sbin
sudo=()
installed() { local name; for name in slurmctld slurmd sbatch munged; do command -v "$name" >/dev/null || return 1; done; }
skip() { echo "no Slurm here: $*" >&2; exit 3; }

installed && exit 0
command -v apt-get >/dev/null || skip "this is no Debian"
if [[ $(id -u) != 0 ]]; then
  sudo -n true 2>/dev/null || skip "installing slurmctld, slurmd, slurm-client and munge needs root"
  sudo=(sudo -n)
fi
# Their daemons need a configuration of the machine that there is not: a policy keeps them from being started.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$policy" >/dev/null
  "${sudo[@]}" chmod 755 "$policy"
  trap '"${sudo[@]}" rm -f "$policy"' EXIT
fi
"${sudo[@]}" apt-get update -qq || skip "apt-get update fails"
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends \
  slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge >/dev/null || skip "apt-get can't install it"
installed || skip "the packages bring other commands than those of Debian 12"
