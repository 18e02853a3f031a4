"""Where an agent finds its first certificate."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.agent.first_certificate import read_from_standard_input, take_from_pbs_script
from malletrain.tls.files import CertificateFileError

CONTENT = b"-----BEGIN PRIVATE KEY-----\n" * 200
LINE = base64.b64encode(CONTENT)


@pytest.fixture
def entry() -> Iterator[int]:
    """The other end of a pipe that is the standard input."""
    before = os.dup(0)
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    os.close(reading)
    try:
        yield writing
    finally:
        os.dup2(before, 0)
        os.close(before)


def test_the_line_is_read_and_workers_inherit_nothing(entry: int) -> None:
    os.write(entry, LINE + b"\n")
    assert read_from_standard_input(5) == CONTENT
    assert os.readlink("/proc/self/fd/0") == os.devnull  # noqa: PTH115
    with pytest.raises(BrokenPipeError):
        os.write(entry, b"more")
    os.close(entry)


def test_a_line_without_an_end_is_read_when_the_writer_has_gone(entry: int) -> None:
    os.write(entry, LINE)
    os.close(entry)
    assert read_from_standard_input(5) == CONTENT


def test_nothing_and_rubbish_are_refused_and_not_repeated(entry: int) -> None:
    with pytest.raises(CertificateFileError, match="none has come in time"):
        read_from_standard_input(0.01)
    os.write(entry, b"no base64!\n")
    with pytest.raises(CertificateFileError, match="expected a certificate in base64") as raised:
        read_from_standard_input(5)
    assert "no base64" not in str(raised.value)
    os.close(entry)


def script_of(folder: Path, text: bytes) -> tuple[Path, dict[str, str]]:
    jobs = folder / "mom_priv/jobs"
    jobs.mkdir(parents=True)
    script = jobs / "77.head.SC"
    script.write_bytes(text)
    return script, {"PBS_NODEFILE": str(folder / "aux/77.head"), "PBS_JOBID": "77.head"}


def test_the_script_of_a_pbs_job_is_emptied(tmp_path: Path) -> None:
    script, environment = script_of(tmp_path, b"#!/bin/sh\n# certificate: " + LINE + b"\n")
    assert take_from_pbs_script(environment) == CONTENT
    assert script.read_bytes() == b""


def test_what_is_no_such_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CertificateFileError, match="expected to run in a job of PBS"):
        take_from_pbs_script({"PBS_JOBID": "77.head"})
    with pytest.raises(CertificateFileError, match="expected the job's script"):
        take_from_pbs_script({"PBS_NODEFILE": str(tmp_path / "aux/1"), "PBS_JOBID": "1"})
    script, environment = script_of(tmp_path, b"")
    assert take_from_pbs_script(environment) == b"", "which is no certificate"
    script.unlink()
    (tmp_path / "elsewhere").write_text("mine")
    script.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CertificateFileError, match="expected the job's script"):
        take_from_pbs_script(environment)
    assert (tmp_path / "elsewhere").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "one of the arguments --certificate --certificate-from is required"),
        (["--certificate", "/f", "--certificate-from", "stdin"], "not allowed with argument"),
        (["--certificate-from", "stdin"], "expected a private key, a certificate and the CA's certificate"),
        (["--certificate-from", "pbs-script"], "expected to run in a job of PBS"),
        (["--certificate", "/none/such"], "expected a file with a certificate"),
    ],
)
def test_an_agent_without_a_certificate_does_not_start(words: list[str], said: str) -> None:
    command = [sys.executable, "-m", "malletrain.agent", "--node", "n1", "--head", "127.0.0.1:9", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PBS_")}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
