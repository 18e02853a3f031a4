"""Hydra's own multirun with the launcher, on live services."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import malletrain
from tests.support.waiting import wait_until

hydra = pytest.importorskip("hydra", reason="needs malletrain[hydra]")

from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: E402
from hydra_plugins.malletrain_launcher import kept_overrides, program, quote_value  # noqa: E402

APP = """\
from __future__ import annotations

import os
import sys
from pathlib import Path

import hydra
from malletrain.client import current_job, done


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    out = Path(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir)
    (out / "result.txt").write_text(f"{current_job().id} {config.lr} {config.model.depth} {Path.cwd()}")
    if config.lr > 0.5:
        sys.exit("lr is too large")
    done({"loss": config.lr * config.model.depth})


main()
"""
SETTINGS = {"job_manager.standby_memory_mib": "0"}


def test_the_program_is_that_which_runs_with_the_flags_for_its_configuration() -> None:
    script, module = SimpleNamespace(__spec__=None), SimpleNamespace(__spec__=SimpleNamespace(name="pkg.app.__main__"))
    argv = ["/a/app.py", "-m", "--config-name", "other", "lr=1,2", "--config-dir=/c", "hydra/launcher=malletrain"]
    assert program(argv, script) == ["/a/app.py", "--config-name", "other", "--config-dir=/c"]
    assert program(argv, module) == ["-m", "pkg.app", "--config-name", "other", "--config-dir=/c"]


def test_overrides_about_the_multirun_are_not_those_of_its_jobs() -> None:
    own = ["hydra/launcher=malletrain", "+hydra.launcher.options.gpus=4", "hydra.sweep.dir=x", "hydra.mode=MULTIRUN"]
    assert kept_overrides([*own, "hydra.verbose=true"]) == ["hydra.verbose=true"]


@pytest.mark.parametrize("text", ["/a/lr=0.1,depth=2", "/a b/c's", "/back\\slash", "/a\\'b", "/end\\", "/{x}[y]"])
def test_folders_are_quoted_as_hydra_reads_them(text: str) -> None:
    (found,) = OverridesParser.create().parse_overrides([f"hydra.run.dir={quote_value(text)}"])
    assert found.value() == text


@pytest.mark.system
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_multirun_on_live_services(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "config.yaml").write_text("defaults:\n  - model: small\nlr: 1.0\n")
    (tmp_path / "conf" / "model" / "small.yaml").write_text("depth: 2\n")
    with malletrain.local(nodes=2, settings=SETTINGS) as cluster:

        def multirun(*words: str) -> tuple[int, str]:
            config = f"hydra.launcher.config={cluster.folder}/malletrain.toml"
            command = [sys.executable, "app.py", "-m", "hydra/launcher=malletrain", config, *words]
            options = ["hydra.launcher.backend=command", "+hydra.launcher.options.max_restarts=0"]
            environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            done = subprocess.run([*command, *options], cwd=tmp_path, env=environ, capture_output=True, timeout=250)
            return done.returncode, done.stderr.decode()

        status, errors = multirun("lr=0.1,0.01", "model.depth=3", "hydra.launcher.metric=loss", "hydra.sweep.dir=out")
        assert status == 0, errors
        jobs = cluster.jobs()
        assert [(job.name, job.state, job.metrics["loss"]) for job in jobs] == [
            ("app-0", "COMPLETED", pytest.approx(0.3)),
            ("app-1", "COMPLETED", pytest.approx(0.03)),
        ]
        found = [(tmp_path / "out" / str(n) / "result.txt").read_text() for n in (0, 1)]
        assert found == [f"{jobs[0].id} 0.1 3 {tmp_path}", f"{jobs[1].id} 0.01 3 {tmp_path}"]
        assert (tmp_path / "out" / "0" / ".hydra" / "overrides.yaml").read_text() == "- lr=0.1\n- model.depth=3\n"
        status, errors = multirun("lr=0.9,0.2")
        assert status == 1
        assert f"{cluster.jobs()[2].id} FAILED" in errors
        wait_until(lambda: str(cluster.jobs()[3].state) == "COMPLETED", 30, "the other one")
