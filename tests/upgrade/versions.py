"""Versions of MalleTrain as an operator installs them: wheels, and virtual environments that have one of them."""

from __future__ import annotations

import io
import shutil
import site
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from malletrain.common.version import VERSION

LAST_RELEASE = "adf9413"
"""The last release, as git knows it: a tag or a commit. A release moves it to its own tag (CONTRIBUTING.md)."""
PRESENT = "{}.{}.0".format(VERSION.split(".")[0], int(VERSION.split(".")[1]) + 1)
"""The version that the code which is tested is built as: until a release it has the number of the last one."""

ROOT = Path(__file__).parents[2]
_VERSION_FILE = "services/malletrain/common/version.py"
_PARTS = (
    *("services", "clients", "protos", "examples/digits", "deploy/systemd"),
    *("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"),
)
"""What a wheel is made of."""


def wheel_of_last_release(folder: Path) -> Path:
    """The wheel of the last release. Skips the test where its files are not at hand."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip(f"needs a git clone of the project, with {LAST_RELEASE} in it")
    packed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "archive", LAST_RELEASE, *_PARTS],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if packed.returncode != 0:
        reason = packed.stderr.decode(errors="replace").strip()
        pytest.skip(f"needs {LAST_RELEASE}, the last release, which this clone does not have ({reason})")
    tree = folder / "tree"
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(tree, filter="data")
    return _build(tree, folder)


def wheel_of_this_version(folder: Path) -> Path:
    """The wheel of the code that is tested, made of a copy: the build writes stubs beside the protos.

    Its version is PRESENT, so that one can tell what is of it.
    """
    tree = folder / "tree"
    left_out = shutil.ignore_patterns("__pycache__", "*_pb2*")
    for part in _PARTS:
        target = tree / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, target, ignore=left_out)
        else:
            shutil.copy(ROOT / part, target)
    version = tree / _VERSION_FILE
    version.write_text(version.read_text().replace(f'VERSION = "{VERSION}"', f'VERSION = "{PRESENT}"'))
    return _build(tree, folder)


def _build(tree: Path, folder: Path) -> Path:
    made = folder / "wheel"
    _pip(Path(sys.executable), "wheel", "--no-build-isolation", "--wheel-dir", str(made), str(tree))
    (wheel,) = made.glob("*.whl")
    return wheel


def version_of(wheel: Path) -> str:
    """The version in a wheel's name."""
    return wheel.name.split("-")[1]


@dataclass(frozen=True)
class Prefix:
    """A virtual environment with a version of MalleTrain, and with all other packages of the one that runs the tests.

    Attributes:
        folder: Where it is.
    """

    folder: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def of_release_0_1(self) -> bool:
        """Whether that is its version, which has no TLS on loopback."""
        return not any(self.folder.glob("lib/python3.*/site-packages/malletrain/runtime/plain_reports.py"))

    def install(self, wheel: Path) -> None:
        """Install a version, in place of the one that is there: what `pip install --upgrade` does."""
        _pip(Path(self.python), "install", "--force-reinstall", str(wheel))


def new_prefix(folder: Path, wheel: Path) -> Prefix:
    """A virtual environment with a version."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    # As plain paths, so that the files of theirs which add the sources of this checkout are not read.
    (packages / "of_the_tests.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    prefix = Prefix(folder)
    prefix.install(wheel)
    return prefix


def _pip(python: Path, *arguments: str) -> None:
    options: tuple[str, ...] = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--no-compile")
    verb, *rest = arguments
    options = options if verb == "install" else options[:-1]
    done = subprocess.run(
        [str(python), "-m", "pip", verb, *options, *rest], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
