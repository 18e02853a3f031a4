"""`ElasticTraining` and `init` for the launcher at hand, so that one script trains under any of them.

MALLETRAIN_BACKEND says which it is; outside MalleTrain the variables that Horovod's launchers set do, and else it is
torch.distributed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping

from malletrain.client.training import Training

_MODULES = {"horovod": "malletrain.client.horovod", "torchrun": "malletrain.client.distributed"}


def module_for(environ: Mapping[str, str]) -> str:
    """Name of the module with the helper that fits the launcher.

    Raises:
        ValueError: there is none for it.
    """
    under_horovod = "HOROVOD_RANK" in environ or "HOROVOD_ELASTIC" in environ
    backend = environ.get("MALLETRAIN_BACKEND") or ("horovod" if under_horovod else "torchrun")
    if backend not in _MODULES:
        raise ValueError(f"MALLETRAIN_BACKEND: expected {' or '.join(_MODULES)}, got {backend!r}")
    return _MODULES[backend]


_module = importlib.import_module(module_for(os.environ))

ElasticTraining: type[Training] = _module.ElasticTraining
init: Callable[[], None] = _module.init
