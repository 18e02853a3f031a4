"""`ElasticTraining`, `init` and `worker_device` for the present launcher, so that one script trains under any of them.

The launcher is that of MALLETRAIN_BACKEND. Outside MalleTrain it is Horovod if the variables of its launchers are set,
else torch.distributed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping

from malletrain.client.devices import worker_device
from malletrain.client.training import Training
from malletrain.common.environment import BACKEND

__all__ = ["ElasticTraining", "init", "module_for", "worker_device"]

_MODULES = {"horovod": "malletrain.client.horovod", "torchrun": "malletrain.client.distributed"}


def module_for(environ: Mapping[str, str]) -> str:
    """Name of the module for the launcher.

    Args:
        environ: Environment of the process.

    Raises:
        ValueError: there is no module for it.
    """
    under_horovod = "HOROVOD_RANK" in environ or "HOROVOD_ELASTIC" in environ
    backend = environ.get(BACKEND) or ("horovod" if under_horovod else "torchrun")
    if backend not in _MODULES:
        raise ValueError(f"{BACKEND}: expected {' or '.join(_MODULES)}, got {backend!r}")
    return _MODULES[backend]


_module = importlib.import_module(module_for(os.environ))

ElasticTraining: type[Training] = _module.ElasticTraining
init: Callable[[], None] = _module.init
