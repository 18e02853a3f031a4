"""What changes of scale do to what is learned, by framework: `python benchmarks/frameworks.py [--seeds 5]`.

Run from the repository's root, with an interpreter that has the frameworks (build/frameworks/bin/python after
`make test-frameworks`). Each example trains static, on 2 workers, and over 1, 3, 2, 1, 4 and 2 workers, with the same
seeds. Prints loss and accuracy on the test set, and the 95 % interval of their difference, seed by seed. A row for each
training is kept in `--out`, and what is there is not made again.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from benchmarks.learning.comparing import compare
from benchmarks.learning.runs import EXAMPLES, ROOT, SCALES, STATIC_SCALE, Learned, Rows, train

PRELOADED = {
    "lightning": ("sklearn.datasets", "lightning"),
    "accelerate": ("accelerate",),
    "transformers": ("transformers.trainer", "transformers.models.bert.modeling_bert"),
    "fsdp2": ("malletrain.client.fsdp",),
}


def table(rows: Sequence[Learned]) -> str:
    """Means, and the interval of the difference."""
    lines = [f"{'':14}{'':10}{'seeds':>6}{'static':>9}{'elastic':>9}   95 % interval of elastic - static"]
    for name in EXAMPLES:
        for metric in ("loss", "accuracy"):
            found = compare(rows, name, metric)
            if found is not None:
                lines.append(
                    f"{name:14}{metric:10}{found.seeds:>6}{found.static:>9.4f}{found.elastic:>9.4f}"
                    f"   {found.low:+.4f} to {found.high:+.4f}{'' if found.within_noise else '  DIFFERENT'}"
                )
    return "\n".join(lines)


def main() -> int:
    """Train what has not been trained, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=positive, default=5, help="pairs of trainings of each example (5)")
    parser.add_argument("--only", choices=EXAMPLES, action="append", help="this example alone; may be repeated")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "learning.jsonl", help="file of the rows")
    options = parser.parse_args()
    names = options.only or list(EXAMPLES)
    missing = [name for name in names if name != "fsdp2" and importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"expected an interpreter with {', '.join(missing)}: build/frameworks/bin/python")
    preloaded = [module for name in names for module in PRELOADED[name]]
    rows = Rows(options.out)
    for seed in range(options.seeds):
        for name in names:
            for scales in ((STATIC_SCALE,), SCALES):
                if not rows.has(name, seed, scales):
                    with tempfile.TemporaryDirectory(prefix="learning-") as folder:
                        rows.add(train(name, seed, scales, Path(folder) / "job", preloaded))
                    print(rows.found[-1], flush=True)
    print(table(rows.found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
