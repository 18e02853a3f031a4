#!/usr/bin/env bash
# deploy/docker/collect-wheels.sh VENV FOLDER: puts the wheels into FOLDER that the image `trainer` would otherwise
# download or build: torch, as pip in VENV finds it, if VENV has one for CPUs, and Horovod, if install-horovod.sh has built it here.
set -euo pipefail

readonly TORCH=torch==2.13.0
mkdir -p "$2"
for_cpus=$("$1/bin/python" -c 'import torch; print(torch.version.cuda is None and torch.version.hip is None)')
if [[ $for_cpus == True ]] && ! compgen -G "$2/torch-*.whl" >/dev/null; then
  "$1/bin/python" -m pip download --quiet --no-deps --no-cache-dir --dest "$2" "$TORCH"
fi
tag=$("$1/bin/python" -c 'import sys, torch; print(f"torch-{torch.__version__}-py{sys.version_info[0]}.{sys.version_info[1]}")')
find "${MALLETRAIN_CACHE:-$HOME/.cache/malletrain}/horovod-0.28.1-$tag" -name '*.whl' -exec cp {} "$2" \; 2>/dev/null || true
