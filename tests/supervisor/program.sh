# A program that knows nothing of us but its hosts file; it saves when it is asked to end.
log="$MALLETRAIN_JOB_DIR/program.log"
trap 'echo saved >> "$log"; exit 0' TERM
echo "hosts $(tr '\n' ',' < "$MALLETRAIN_HOSTFILE") generation $MALLETRAIN_GENERATION" >> "$log"
while :; do sleep 0.05; done
