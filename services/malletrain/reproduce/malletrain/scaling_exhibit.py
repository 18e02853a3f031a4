"""MalleTrain's Fig. 14 from the curves that replays have: throughput by nodes, up to 32."""

from __future__ import annotations

from malletrain.reproduce.exhibits import Exhibit, rounded
from malletrain.simulator.replay.presets import MODELS, preset_jobs
from malletrain.simulator.replay.running_job import speeds
from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.plots import lines

_SCALES = (1, 2, 4, 8, 16, 32)


def scaling_exhibit() -> Exhibit:
    """Speedups of the published models on up to 32 nodes: what every replay of them rests on."""
    rows, series = [], {}
    for job in preset_jobs("imagenet", len(MODELS)):
        rates = speeds(job, _SCALES[-1])
        speedups = [rates[nodes] / rates[1] for nodes in _SCALES]
        rows += [
            (job.model, nodes, rates[nodes], speedup, 100 * speedup / nodes)
            for nodes, speedup in zip(_SCALES, speedups, strict=True)
        ]
        series[job.model] = ([float(nodes) for nodes in _SCALES], speedups)
    return Exhibit(
        "figure-14",
        "Fig. 14: scaling up to 32 nodes",
        ("model", "nodes", "samples/s", "speedup", "efficiency, %"),
        rounded(rows),
        "The paper measures on 32 nodes of Polaris with 128 A100. These are the curves that BFTrainer published for "
        "Summit (its Table 2), with which all replays here are made; nothing of it was measured by us.",
        lines("Fig. 14: speedup", "nodes", Axis("speedup", zero=True), series),
    )
