"""`steady.py FOLDER [STATUS]`: reports and prints numbered lines until FOLDER/go is there, then ends with STATUS.

The numbers go on where the run before has ended, so that the log of all runs counts without a gap.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from malletrain.client import report

folder, status = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
counter = folder / "count"
number = int(counter.read_text()) if counter.exists() else 0
while not (folder / "go").exists():
    number += 1
    sys.stdout.write(f"line {number} ")
    sys.stdout.flush()  # half a line, so that a reader sees it torn
    time.sleep(0.005)
    sys.stdout.write("end\n")
    sys.stdout.flush()
    counter.with_suffix(".new").write_text(str(number))
    counter.with_suffix(".new").replace(counter)
    report(10)
    time.sleep(0.005)
print("last line without an end", end="", flush=True)
sys.exit(status)
