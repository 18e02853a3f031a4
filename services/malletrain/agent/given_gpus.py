"""Whether a batch scheduler has told a placeholder which GPU is its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    "ZE_AFFINITY_MASK",
)
"""In what the makers' libraries look for the GPUs that a program may use: NVIDIA's, AMD's, Intel's."""
_SHOWN = 80


def problem_of_one_gpu(environment: Mapping[str, str]) -> str:
    """Why no worker may start in a placeholder of one GPU; empty: it is told which one that is.

    Without that, a worker would see all GPUs of its node, and use one of a main job.

    Args:
        environment: Of the placeholder.
    """
    values = {name: environment.get(name, "") for name in _VARIABLES}
    counts = {name: count for name, value in values.items() if (count := _devices(value))}
    for name, count in counts.items():
        if count > 1:
            return f"the scheduler names more than one GPU: {name}={values[name][:_SHOWN]}"
    if not counts:
        return (
            "the scheduler does not say which GPU is given (CUDA_VISIBLE_DEVICES is not set): "
            "see docs/operators/pbs.md, single GPUs"
        )
    return ""


def _devices(value: str) -> int:
    return sum(1 for device in value.split(",") if device.strip())
