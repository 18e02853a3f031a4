#!/bin/sh
# deploy/docker/install-torch.sh VENV VERSION INDEX WHEELS: installs torch. A wheel of it in the folder WHEELS is taken as it is,
# with what it needs from the indexes that pip knows; without one, INDEX is asked, or those indexes if it is empty.
set -eu

for wheel in "$4"/torch-"$2"[-+]*.whl; do
  if [ -e "$wheel" ]; then
    exec "$1/bin/pip" install --quiet "$wheel"
  fi
done
exec "$1/bin/pip" install --quiet ${3:+--index-url "$3"} "torch==$2"
