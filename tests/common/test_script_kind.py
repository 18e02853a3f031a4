"""Which kind of program a command is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from malletrain.common.launch_advice import advise
from malletrain.common.script_kind import ProgramFiles, Script, ScriptKind, recognise
from malletrain.common.script_reading import ScriptReader, read_script

LOOP = "import torch\nfrom malletrain.client import report\nfor _ in range(9): report(8)\n"
DDP = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
PLAIN_HOROVOD = "import horovod.torch as hvd\nhvd.init()\nprint(hvd.rank())\n"
ELASTIC_HOROVOD = "import horovod.torch as hvd\nhvd.init()\n@hvd.elastic.run\ndef train(state): pass\n"

SOURCES = [
    (LOOP, ScriptKind.SINGLE),
    ("import jax\nprint(jax.devices())\n", ScriptKind.SINGLE),
    ("import logging, os\nif os.environ.get('RANK', '0') == '0': logging.info('x')\n", ScriptKind.SINGLE),
    ("import os\nos.environ['LOCAL_RANK'] = '0'\n", ScriptKind.SINGLE),
    ("import pytorch_lightning as pl\npl.Trainer(max_epochs=3)\n", ScriptKind.SINGLE),
    ("from lightning import Trainer\nTrainer(num_nodes=4)\n", ScriptKind.TORCHRUN),
    (DDP, ScriptKind.TORCHRUN),
    ("from torch.distributed import init_process_group as begin\nbegin()\n", ScriptKind.TORCHRUN),
    (
        "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cpu', (2,))\n",
        ScriptKind.TORCHRUN,
    ),
    ("import argparse\nargparse.ArgumentParser().add_argument('--local-rank', type=int)\n", ScriptKind.TORCHRUN),
    ("import os\nrank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n", ScriptKind.TORCHRUN),
    ("import os\nlocal = int(os.getenv('LOCAL_RANK', 0))\n", ScriptKind.TORCHRUN),
    ("from accelerate import Accelerator\nAccelerator()\n", ScriptKind.TORCHRUN),
    ("import transformers\ntransformers.Trainer()\n", ScriptKind.TORCHRUN),
    ("import transformers\ntransformers.AutoModel\n", ScriptKind.SINGLE),
    ("from malletrain.client.lightning import Elastic\n", ScriptKind.TORCHRUN),
    ("import torch.multiprocessing as mp\n" + DDP + "mp.spawn(print, nprocs=2)\n", ScriptKind.OWN_RANKS),
    (
        "import os\nimport torch.multiprocessing as mp\n" + DDP + "os.environ['RANK'] or mp.spawn(print)",
        ScriptKind.OWN_RANKS,
    ),
    ("from multiprocessing import Process\n" + DDP + "Process(target=print)\n", ScriptKind.OWN_RANKS),
    ("import os\nfrom multiprocessing import Process\n" + DDP + "os.environ['RANK']\n", ScriptKind.TORCHRUN),
    (
        "import torch.distributed as dist\ndist.init_process_group('gloo', world_size=args.world)\n",
        ScriptKind.OWN_RANKS,
    ),
    (DDP + "train(world_size=dist.get_world_size())\n", ScriptKind.TORCHRUN),
    (PLAIN_HOROVOD, ScriptKind.HOROVOD),
    ("import horovod.tensorflow.keras as hvd\nhvd.init()\n", ScriptKind.HOROVOD),
    ("from horovod.torch import init, rank\ninit()\n", ScriptKind.HOROVOD),
    (ELASTIC_HOROVOD, ScriptKind.ELASTIC_HOROVOD),
    ("import horovod.torch as h\nfrom horovod.torch.elastic import run\nh.init()\n", ScriptKind.ELASTIC_HOROVOD),
    ("from malletrain.client.horovod import init\n", ScriptKind.ELASTIC_HOROVOD),
    ("from malletrain.client import elastic\n", ScriptKind.ANY_BACKEND),
    ("from malletrain.client.elastic import init\n" + DDP, ScriptKind.ANY_BACKEND),
    (PLAIN_HOROVOD + DDP, ScriptKind.UNKNOWN),
    (PLAIN_HOROVOD + DDP + "import os\nos.environ['LOCAL_RANK']\n", ScriptKind.TORCHRUN),
    ("print 'Python 2'\n", ScriptKind.UNKNOWN),
    ("x = " + "(" * 3000 + ")" * 3000, ScriptKind.UNKNOWN),
]


@pytest.mark.parametrize(("source", "kind"), SOURCES)
def test_a_python_script_shows_how_its_ranks_are_started(tmp_path: Path, source: str, kind: ScriptKind) -> None:
    (tmp_path / "train.py").write_text(source)
    assert read_script(["python", "-u", "train.py", "--lr", "1"], tmp_path) == Script(
        kind, "train.py", helped="malletrain.client." in source or "client import elastic" in source
    )


COMMANDS = [
    ("torchrun --nproc-per-node 2 ddp.py", ScriptKind.LAUNCHER),
    ("python -m torch.distributed.run ddp.py", ScriptKind.LAUNCHER),
    ("accelerate launch ddp.py", ScriptKind.LAUNCHER),
    ("/opt/mpi/bin/mpirun -n 2 python ddp.py", ScriptKind.LAUNCHER),
    ("nice -n 5 python ddp.py", ScriptKind.TORCHRUN),
    ("conda run -n env python3.11 loop.py", ScriptKind.WRAPPER),
    ("env X=1 torchrun ddp.py", ScriptKind.LAUNCHER),
    ("./train", ScriptKind.WRAPPER),
    ("sleep 60", ScriptKind.WRAPPER),
    ("python -m package.ddp", ScriptKind.TORCHRUN),
    ("python -m package", ScriptKind.SINGLE),
    ("python -m elsewhere", ScriptKind.UNKNOWN),
    ("python missing.py", ScriptKind.UNKNOWN),
    ("python imports_own.py", ScriptKind.TORCHRUN),
    ("python package/relative.py", ScriptKind.TORCHRUN),
    ("./executable.py", ScriptKind.TORCHRUN),
    ("bash run_loop.sh", ScriptKind.WRAPPER),
    ("./run_ddp.sh --lr 1", ScriptKind.TORCHRUN),
    ("bash -eu run_ddp.sh", ScriptKind.TORCHRUN),
    ("bash run_launcher.sh", ScriptKind.LAUNCHER),
    ("bash run_two.sh", ScriptKind.WRAPPER),
    ("bash missing.sh", ScriptKind.WRAPPER),
    ("bash", ScriptKind.WRAPPER),
    ("python", ScriptKind.UNKNOWN),
]


@pytest.mark.parametrize(("command", "kind"), COMMANDS)
def test_a_command_is_followed_to_the_script(tmp_path: Path, command: str, kind: ScriptKind) -> None:
    files = {
        "ddp.py": DDP,
        "loop.py": LOOP,
        "train": "\x7fELF",
        "package/__init__.py": "",
        "package/__main__.py": LOOP,
        "package/ddp.py": DDP,
        "package/relative.py": "from .ddp import train\n",
        "imports_own.py": "from package.ddp import train\nfrom os import path\n",
        "executable.py": f"#!/usr/bin/env python3\n{DDP}",
        "run_loop.sh": '#!/bin/bash\nset -e\ncd "$(dirname "$0")"\nexport A="it\'s"\npython loop.py "$@"\necho done\n',
        "run_ddp.sh": "#!/usr/bin/env bash\npython --version\npython -c 'import torch'\nX=1 exec $PYTHON -u \\\n"
        "  ddp.py | tee log # python loop.py\n",
        "run_launcher.sh": "torchrun ddp.py\n",
        "run_two.sh": "python loop.py\npython ddp.py\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_script(command.split(), tmp_path).kind is kind


def test_a_shells_own_text_is_followed_too(tmp_path: Path) -> None:
    (tmp_path / "ddp.py").write_text(DDP)
    assert read_script(["sh", "-c", "python ddp.py 2>&1 | tee log"], tmp_path).kind is ScriptKind.TORCHRUN
    assert read_script(["bash", "-lc", "mpirun x"], tmp_path).kind is ScriptKind.LAUNCHER
    assert read_script(["python", "-c", DDP], tmp_path).kind is ScriptKind.TORCHRUN
    assert read_script(["python", "-c"], tmp_path).kind is ScriptKind.UNKNOWN


def test_only_plain_files_of_bounded_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "large.py").write_text("#" * (1 << 20) + "\n")
    (tmp_path / "folder.py").mkdir()
    for name in ("pipe.py", "large.py", "folder.py", "no\0name.py"):
        assert read_script(["python", name], tmp_path).kind is ScriptKind.UNKNOWN, name
    reader = ScriptReader()
    (tmp_path / "half.py").write_text("#" * (1 << 19))
    assert [reader(tmp_path / "half.py") is not None for _ in range(5)] == [True] * 4 + [False]


STARTER = "#!{python}\nimport sys\nfrom {package}.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


def environment(folder: Path, package: str, source: str) -> Path:
    """A virtual environment with a package that has a command of its own; its interpreter, which is never started."""
    inside = folder / "env/lib/python3.11/site-packages" / package
    inside.mkdir(parents=True)
    (inside / "__init__.py").touch()
    (inside / "cli.py").write_text(f"from {package} import ranks\nimport other\ndef main(): ...\n")
    (inside / "ranks.py").write_text(source)
    (inside.parent / "other.py").write_text("import horovod.torch as hvd\nhvd.init()\n")
    python = folder / "env/bin/python"
    python.parent.mkdir()
    python.symlink_to("/bin/false")
    starter = folder / "env/bin" / package
    starter.write_text(STARTER.format(python=python, package=package))
    starter.chmod(0o755)
    return python


def test_a_module_that_is_installed_for_another_interpreter(tmp_path: Path) -> None:
    python = str(environment(tmp_path, "library", DDP))
    assert read_script([python, "-m", "library.cli"], tmp_path) == Script(ScriptKind.TORCHRUN, "library.cli")
    assert read_script(["env/bin/python", "-m", "library.cli"], tmp_path).kind is ScriptKind.TORCHRUN
    assert read_script(["nice", python, "-m", "library.cli"], tmp_path).kind is ScriptKind.TORCHRUN
    assert read_script(["python", "-m", "library.cli"], tmp_path, f"{tmp_path}/env/bin").kind is ScriptKind.TORCHRUN
    assert read_script([python, "-m", "library.none"], tmp_path).kind is ScriptKind.UNKNOWN


def test_a_command_that_pip_has_made_for_a_package(tmp_path: Path) -> None:
    environment(tmp_path, "library", DDP)
    assert read_script([f"{tmp_path}/env/bin/library", "train"], tmp_path).kind is ScriptKind.TORCHRUN
    assert read_script(["library", "train"], tmp_path, f"{tmp_path}/env/bin").kind is ScriptKind.TORCHRUN


def test_a_package_that_is_installed_editable_and_one_on_the_path(tmp_path: Path) -> None:
    python = environment(tmp_path, "library", LOOP)
    (tmp_path / "source/mine").mkdir(parents=True)
    (tmp_path / "source/mine/train.py").write_text(DDP)
    assert read_script([str(python), "-m", "mine.train"], tmp_path).kind is ScriptKind.UNKNOWN
    path = f"{tmp_path}/source"
    assert read_script([str(python), "-m", "mine.train"], tmp_path, python_path=path).kind is ScriptKind.TORCHRUN
    assert read_script([str(python), "-m", "mine.train"], tmp_path, python_path="source").kind is ScriptKind.TORCHRUN
    packages = tmp_path / "env/lib/python3.11/site-packages"
    (packages / "editable.pth").write_text(f"import sys\n# {tmp_path}\n{tmp_path}/source\n")
    assert read_script([str(python), "-m", "mine.train"], tmp_path).kind is ScriptKind.TORCHRUN


def test_a_program_of_many_files_is_read_in_part(tmp_path: Path) -> None:
    asked: list[Path] = []

    def read(path: Path) -> bytes | None:
        asked.append(path)
        return f"import m{len(asked)}, m{len(asked) + 1000}".encode()

    assert recognise(["python", "train.py"], tmp_path, ProgramFiles(read)).kind is ScriptKind.SINGLE
    assert len(asked) <= 64


@pytest.mark.parametrize("kind", list(ScriptKind))
@pytest.mark.parametrize("backend", ["", "horovod", "torchrun", "command"])
def test_what_is_said_is_one_sentence(kind: ScriptKind, backend: str) -> None:
    advice = advise(Script(kind, "train.py", "torchrun"), backend)
    assert advice.backend == backend or not backend
    assert "\n" not in advice.note
    assert len(advice.note) < 300
    assert not advice.one_node or advice.backend == "command"


@pytest.mark.parametrize("kind", [ScriptKind.WRAPPER, ScriptKind.LAUNCHER])
def test_who_has_said_how_many_nodes_is_not_told_to_say_it(kind: ScriptKind) -> None:
    script = Script(kind, "run.sh", "torchrun")
    assert "--max" in advise(script).note
    told = advise(script, scale_named=True).note
    assert "--max" not in told
    assert "$MALLETRAIN_HOSTFILE" in told


@pytest.mark.parametrize(
    ("kind", "backend", "said"),
    [
        (ScriptKind.SINGLE, "torchrun", "--backend command"),
        (ScriptKind.SINGLE, "horovod", "--backend command"),
        (ScriptKind.SINGLE, "command", "--max 1"),
        (ScriptKind.HOROVOD, "horovod", "hvd.elastic.run"),
        (ScriptKind.ELASTIC_HOROVOD, "torchrun", "--backend horovod"),
        (ScriptKind.TORCHRUN, "horovod", "--backend torchrun"),
        (ScriptKind.TORCHRUN, "command", "--backend torchrun"),
        (ScriptKind.LAUNCHER, "torchrun", "--backend command"),
    ],
)
def test_what_does_not_fit_is_told_with_what_to_change(kind: ScriptKind, backend: str, said: str) -> None:
    script = Script(kind, "train.py", "torchrun")
    assert said in advise(script, backend).note
    assert not advise(script, backend, several=False).note


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        (ScriptKind.ELASTIC_HOROVOD, "horovod"),
        (ScriptKind.ANY_BACKEND, "horovod"),
        (ScriptKind.ANY_BACKEND, "torchrun"),
        (ScriptKind.TORCHRUN, "torchrun"),
        (ScriptKind.LAUNCHER, "command"),
        (ScriptKind.WRAPPER, "torchrun"),
    ],
)
def test_of_what_fits_nothing_is_said(kind: ScriptKind, backend: str) -> None:
    assert not advise(Script(kind, "train.py", "torchrun"), backend).note


def test_a_module_of_an_installed_package_is_looked_into_and_its_other_packages_are_not(tmp_path: Path) -> None:
    """An interpreter's own packages, as `python -m` finds them; what they import of others says nothing of it."""
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    for name, source in {
        "titan/__init__.py": "",
        "titan/train.py": "import torch\nfrom titan.place import begin\nbegin()\n",
        "titan/place.py": DDP,
        "alone/__init__.py": "",
        "alone/__main__.py": "import titan.place\nfrom .loop import run\n",
        "alone/loop.py": LOOP,
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(source)
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()

    def kind(*words: str) -> ScriptKind:
        return read_script(words, work, str(python.parent)).kind

    assert kind(str(python), "-m", "titan.train") is ScriptKind.TORCHRUN
    assert kind("python", "-m", "titan.train") is ScriptKind.TORCHRUN
    assert kind("../env/bin/python", "-m", "alone") is ScriptKind.SINGLE
    assert kind("python", "-m", "elsewhere") is ScriptKind.UNKNOWN
    (work / "titan").mkdir()
    (work / "titan" / "train.py").write_text(LOOP)
    assert kind("python", "-m", "titan.train") is ScriptKind.SINGLE, "the working directory comes first"
