"""Figures that BFTrainer (Liu et al.) reports as numbers in its text and tables."""

from __future__ import annotations

from collections.abc import Mapping

PARALLEL = (5, 10, 15, 20, 25, 30, 35)

TABLE_1: Mapping[str, tuple[float, float, float, float]] = {
    "Summit (2 months)": (41.7, 28.6, 0.111, 524.0),
    "Summit (2 weeks)": (14049 / 336, 10573 / 336, 0.086, 407.0),
    "Theta (1 year)": (6.3, 6.2, 0.125, 547.0),
    "Mira (1 year)": (2.8, 2.4, 0.103, 5071.0),
}
"""INC/h, DEC/h, idle ratio, equivalent nodes."""

TABLE_3: Mapping[str, tuple[float, ...]] = {
    "AlexNet": (0.5, 0.6, 0.5, 0.6, 0.5, 0.5, 0.6),
    "ResNet18": (0.4, 0.4, 0.4, 0.4, 0.5, 0.5, 0.5),
    "MnasNet": (0.7, 0.7, 0.8, 0.8, 0.9, 0.9, 1.1),
    "MobileNets": (0.8, 0.9, 0.8, 0.9, 1.0, 1.2, 1.4),
    "ShuffleNet": (0.9, 1.0, 0.9, 1.2, 1.4, 1.6, 1.8),
    "VGG-16": (2.3, 3.4, 4.1, 5.4, 6.1, 6.3, 7.4),
    "DenseNet": (4.1, 9.5, 16.1, 22.4, 29.2, 36.3, 42.3),
}
"""Mean runtime in hours by model, for 5 to 35 parallel jobs, with throughput as metric."""

TABLE_4: Mapping[str, tuple[float, ...]] = {
    "VGG-16": (1.98, 2.8, 3.3, 3.8, 4.5, 5.0, 5.2),
    "DenseNet": (2.58, 3.4, 4.6, 5.2, 6.4, 6.5, 7.8),
    "ResNet18": (0.77, 1.1, 1.5, 1.9, 2.1, 2.4, 2.6),
    "MobileNets": (0.89, 1.8, 2.7, 3.8, 4.7, 5.9, 7.4),
    "ShuffleNet": (1.15, 2.1, 2.9, 4.2, 5.4, 7.2, 8.5),
    "MnasNet": (1.15, 2.3, 3.8, 5.5, 7.0, 9.4, 10.7),
    "AlexNet": (0.94, 2.4, 3.9, 5.3, 6.8, 7.6, 8.8),
}
"""The same with scaling efficiency as metric."""

EFFICIENCY = {"milp": 0.80, "equal": 0.75}
"""U over a week of HPO, T_fwd 120 s (sections 5.1.2)."""

MODEL_EFFICIENCY = {"AlexNet": 0.75, "DenseNet": 0.83}
"""U of HPO over 60 hours, worst and best model (section 5.4.1)."""

PREEMPTED_WITHIN = (170.0, 0.9)
"""T_fwd in seconds from which on a preemption follows in this share of cases (Fig. 7a)."""

EQUAL_COST_PER_EVENT, TIMES_MILP = 1.03e6, 76.0
"""Samples that the baseline spends on rescaling per event, and how many times what the MILP does at 10 s (Fig. 7b)."""

UNOCCUPIED = {5: 0.124, 10: 0.021}
"""Share of the idle node-hours that no job holds, by parallel jobs (Fig. 14)."""

SHORT_FRAGMENTS = (0.58, 0.10)
"""Share of fragments under ten minutes, and of the node-time in them (section 2.1)."""

WORSE_EVENTS, TWICE_EVENTS, FIVE_TIMES_EVENTS = 0.069, 0.11, 0.03
"""Share of events at which the MILP is worse than the baseline, twice as good, five times as good (section 5.1.2)."""
