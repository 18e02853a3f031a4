#!/bin/bash
# A wrapper, as many have one.
set -e
cd "$(dirname "$0")"
export GREETING="hello 'world'"
"$1" silent.py | tee "$MALLETRAIN_JOB_DIR/copy.log"
echo "the wrapper is done"
