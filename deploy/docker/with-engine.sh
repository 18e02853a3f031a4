#!/usr/bin/env bash
# deploy/docker/with-engine.sh COMMAND ...: runs a command where `docker build` and `docker compose` work: as they are,
# or with an engine that $CONTAINERS_RECIPE (../shared/containers) sets up, which ends with the command.
# Exit status 77: there is no engine, and no way to one; no tool of the tests ends with it. 1: the recipe fails.
set -euo pipefail

readonly NO_ENGINE=77
recipe=${CONTAINERS_RECIPE:-../shared/containers}

if docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1; then
  exec "$@"
fi
if [[ ! -x $recipe/setup.sh ]]; then
  echo "no container engine with BuildKit and compose answers" >&2
  exit $NO_ENGINE
fi
if [[ $EUID != 0 ]]; then
  echo "no container engine answers, and only root can start the one of $recipe" >&2
  exit $NO_ENGINE
fi
recipe=$(realpath "$recipe")
# Builds and containers inherit the niceness of the engine, which setup.sh starts. On a crowded machine it may fail once.
if ! nice "$recipe/setup.sh" >&2 && ! nice "$recipe/setup.sh" >&2; then
  echo "$recipe can't set up a container engine here" >&2
  exit 1
fi
# shellcheck disable=SC1091
. "$recipe/env.sh"
trap '"$recipe/engine.sh" stop' EXIT
"$@"
