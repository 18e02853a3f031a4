"""`import malletrain` costs nothing, needs the base install only, and is typed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import malletrain

ROOT = Path(__file__).parents[2]
HEAD = (
    *("pydantic", "pydantic_settings", "rich", "typer", "structlog", "sqlalchemy", "numpy", "cryptography", "jwt"),
    *("grpc_health", "grpc_status", "grpc_reflection", "google.rpc", "ClusterShell", "alembic"),
)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_training_that_imports_the_client_gets_nothing_else() -> None:
    code = (
        "import sys; import malletrain.client\n"
        "found = [name for name in sys.modules if name.startswith(('malletrain.api', 'malletrain.caller', 'grpc'))]\n"
        "print(found, 'api' in dir(sys.modules['malletrain']))"
    )
    assert run(code) == "[] False"


@pytest.mark.parametrize("name", malletrain.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(malletrain, name).__doc__
    assert name in dir(malletrain)


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sumbit'"):
        malletrain.sumbit  # type: ignore[attr-defined]  # noqa: B018


def test_all_of_it_is_imported_with_the_base_install_alone(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        f"absent = {HEAD!r}\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith(absent) and any(name == part or name.startswith(part + '.') for part in absent):\n"
        "            raise ModuleNotFoundError(f'{name} is not installed', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import malletrain\n"
        "print(all(getattr(malletrain, name) for name in malletrain.__all__))\n"
        f"connection = malletrain.connect(state_dir={str(tmp_path)!r})\n"
        "try:\n"
        "    malletrain.submit(['true'], max_nodes=2, backend='command')\n"
        "except malletrain.MalleTrainError as error:\n"
        "    print(error)\n"
    )
    shown = run(code).splitlines()
    assert shown[0] == "True"
    assert shown[1].startswith("no services have been started here yet")


def test_the_wheel_has_one_package_with_its_mark_of_types(tmp_path: Path) -> None:
    # Of a copy: the build writes the stubs of the protos, which other tests import at the same time.
    for name in ("services", "clients", "protos", "deploy/systemd", "examples/digits"):
        shutil.copytree(ROOT / name, tmp_path / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(tmp_path / "source")], check=True, timeout=100)
    (wheel,) = tmp_path.glob("malletrain-*.whl")
    code = (
        f"import sys; sys.path.insert(0, {str(wheel)!r})\n"
        "import malletrain, malletrain.client, malletrain.v1, malletrain.cli, zipfile\n"
        f"names = zipfile.ZipFile({str(wheel)!r}).namelist()\n"
        "print(malletrain.__file__.startswith(sys.path[0]), malletrain.local.__module__)\n"
        "print('malletrain/py.typed' in names)"
    )
    assert run(code) == "True malletrain.api.local\nTrue"
