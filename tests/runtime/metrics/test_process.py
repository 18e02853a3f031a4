from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from malletrain.runtime.access.certificate_renewal import CertificateRenewal
from malletrain.runtime.config import MetricsSettings, Settings
from malletrain.runtime.metrics.process import metrics_of_process
from tests.support.clocks import ManualClock
from tests.support.metrics import read

NOW = 1_700_000_000.0


def settings(state_dir: Path) -> Settings:
    return Settings(state_dir=state_dir, metrics=MetricsSettings(monitor="127.0.0.1:1", max_jobs=7))


async def test_a_process_tells_its_version_its_use_and_the_state_of_its_folder(tmp_path: Path) -> None:
    CertificateRenewal(tmp_path, ("monitor",), ManualClock(NOW), 3600.0).renew()
    metrics = metrics_of_process("monitor", settings(tmp_path))
    assert metrics.max_jobs == 7
    found = await read(metrics)
    (build,) = [key for key in found if key[0] == "malletrain_build_info"]
    assert build[2] == version("malletrain")
    assert found["process_resident_memory_bytes",] > 1e6
    assert 0 <= found["malletrain_state_disk_free_bytes",] <= found["malletrain_state_disk_size_bytes",]
    assert found["malletrain_certificate_not_after_timestamp_seconds", "monitor"] == NOW + 3600
    assert ("malletrain_certificate_not_after_timestamp_seconds", "authority") in found


async def test_certificates_that_can_not_be_read_leave_the_other_metrics(tmp_path: Path) -> None:
    manager = CertificateRenewal(tmp_path, ("monitor",), ManualClock(NOW))
    manager.renew()
    manager.path("monitor").write_text("nonsense")
    found = await read(metrics_of_process("monitor", settings(tmp_path)))
    assert ("malletrain_state_disk_free_bytes",) in found
    assert not [key for key in found if key[0].startswith("malletrain_certificate")]


async def test_where_nothing_is_served_nothing_is_gathered(tmp_path: Path) -> None:
    assert await read(metrics_of_process("scavenger", settings(tmp_path))) == {}
