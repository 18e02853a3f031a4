#!/usr/bin/env bash
# deploy/install-horovod.sh [VENV]: Elastic Horovod (PyTorch, Gloo) built against the torch that VENV has.
#
# Horovod 0.28.1 is its last release and comes as source only. It asks for C++14, which the headers of torch 2.x no
# longer compile under; it ignores CMAKE_ARGS and strips -std from CXXFLAGS, so that a toolchain file raises the
# standard. Where nvcc and NCCL are found, operations on GPUs use NCCL. The wheel is cached by torch and Python version in
# ${MALLETRAIN_CACHE:-~/.cache/malletrain}.
set -euo pipefail

readonly VERSION=0.28.1
venv=${1:-.venv}
python=$venv/bin/python

if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "install-horovod: $venv has no torch; install it first: $python -m pip install torch==2.13.0" >&2
  exit 1
fi
if "$python" -c 'import horovod.torch' 2>/dev/null; then
  echo "Horovod is already in $venv"
  exit 0
fi

tag=$("$python" -c 'import sys, torch; print(f"torch-{torch.__version__}-py{sys.version_info[0]}.{sys.version_info[1]}")')
cache=${MALLETRAIN_CACHE:-$HOME/.cache/malletrain}/horovod-$VERSION-$tag
if ! compgen -G "$cache/*.whl" >/dev/null; then
  for tool in g++ cmake make; do
    if ! command -v "$tool" >/dev/null; then
      echo "install-horovod: building needs $tool (Debian: apt-get install g++ cmake make)" >&2
      exit 1
    fi
  done
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cat >"$work/standard.cmake" <<'CMAKE'
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG")
CMAKE
  # Included after CMake has chosen a compiler, whose defaults would otherwise win.
  echo "set(CMAKE_PROJECT_INCLUDE $work/standard.cmake)" >"$work/toolchain.cmake"
  echo "building Horovod $VERSION for $tag: some minutes, once"
  "$python" -m pip install --quiet setuptools wheel packaging cloudpickle psutil pyyaml cffi
  gpu=()
  if command -v nvcc >/dev/null && ldconfig -p | grep -c libnccl.so >/dev/null; then
    gpu=(HOROVOD_GPU_OPERATIONS=NCCL)
  fi
  if ! env "${gpu[@]}" HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
    HOROVOD_WITHOUT_MXNET=1 CMAKE_TOOLCHAIN_FILE="$work/toolchain.cmake" MAKEFLAGS="-j$(nproc)" LDFLAGS=-s \
    "$python" -m pip wheel --no-build-isolation --no-deps --no-cache-dir --wheel-dir "$work/wheels" \
    "horovod==$VERSION" >"$work/log" 2>&1; then
    tail -n 40 "$work/log" >&2
    exit 1
  fi
  mkdir -p "$cache"
  mv "$work"/wheels/horovod-*.whl "$cache/"
fi
"$python" -m pip install --quiet "$cache"/horovod-*.whl

# Into a variable rather than a pipe: a reader that stops early would look like a failure under pipefail.
built=$("$venv/bin/horovodrun" --check-build)
if [[ $built != *"[X] PyTorch"* || $built != *"[X] Gloo"* ]]; then
  echo "install-horovod: the build lacks PyTorch or Gloo" >&2
  exit 1
fi
echo "Horovod $VERSION is in $venv"
