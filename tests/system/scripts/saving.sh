# A wrapper as people write them: it does something before and after the training, and knows nothing of us.
set -e
cd "$(dirname "$0")"
export GREETING="hello 'world'"
python saving.py "$@" | tee -a "$MALLETRAIN_JOB_DIR/copy"
echo "the wrapper's last line"
