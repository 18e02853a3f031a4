#!/bin/sh
# deploy/docker/remove-surplus.sh VENV: removes from a virtual environment what no program in an image uses.
set -eu

packages=$(echo "$1"/lib/python3*/site-packages)
"$1/bin/python" -m pip uninstall --quiet --yes pip
find "$packages" -type d -name tests -prune -exec rm -rf {} +
find "$packages" -type f \( -name '*.a' -o -name '*.h' -o -name '*.hpp' -o -name '*.cuh' -o -name '*.pxd' -o -name '*.pyi' \
  -o -name '*.pyx' \) -delete
