"""What Fan et al. (HPDC 2019) report as numbers in text and tables; their figures have no numbers."""

from __future__ import annotations

from collections.abc import Mapping

TABLE_1: Mapping[str, str] = {
    "baseline": "J1, J4: 90 % of nodes, 20 % of burst buffer",
    "weighted-cpu": "J1, J5: 100 %, 20 %",
    "constrained-cpu": "J1, J5: 100 %, 20 %",
    "bin-packing": "J1, J5: 100 %, 20 %",
    "bbsched": "J2 to J5: 80 %, 90 %",
}
TABLE_3: Mapping[tuple[str, int], tuple[float, float, float, float]] = {
    ("cori", 10): (60.18, 92.53, 55_732, 162.4),
    ("cori", 20): (64.90, 94.74, 51_028, 154.4),
    ("cori", 50): (65.06, 94.65, 50_871, 153.2),
    ("theta", 10): (67.12, 84.23, 10_402, 8.93),
    ("theta", 20): (73.29, 89.54, 8_847, 8.16),
    ("theta", 50): (74.34, 89.63, 8_792, 8.08),
}
"""Node usage and burst buffer usage in %, wait in seconds, slowdown, by machine and window."""
NODE_USAGE = (
    "Published: BBSched best in 7 of 10 workloads; against the baseline +12.69 % on Theta-S3, +20.03 % on Theta-S4, "
    "+16.28 % on Cori-S4 (relative or points is not said)."
)
BURST_BUFFER_USAGE = "Published: BBSched best in all ten, up to +15.46 %; all methods but Constrained_CPU improve it."
WAIT = (
    "Published: with BBSched jobs wait up to 33.44 % less than with the baseline on Cori, 41 % on Theta-S4, 21.30 % on "
    "Theta-Original; the second is Weighted_BB with less than 26 %."
)
WAIT_CHANGES: Mapping[str, float] = {"theta-original": -21.30, "theta-s4": -41.0}
"""Wait with BBSched against the baseline by workload, in %, where the text says which."""
BREAKDOWN = {
    "nodes": "Published: 1-8 nodes −48.29 %, 1024-4392 nodes −31.59 % with BBSched.",
    "burst buffer": "Published: baseline 10.25 h above 200 TB and 2.5 h without request; Constrained_CPU −32.43 % "
    "without request, +17.21 % for 100-200 TB.",
    "run time": "Published: with all optimising methods long jobs wait less, and short ones more.",
}
TIMES = (
    "Published: below 0.2 s with P = 20, G = 500; below 2 s with G = 2000 and w = 50; exhaustive search exponential."
)
