"""What callers show: services, jobs and the command."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from malletrain.caller.credentials import MungeToken, caller_credential, owner_credential
from malletrain.cli.shared.stubs import explain
from malletrain.client.monitor_stream import read_job_token
from malletrain.common.job_folder import FEED_CERTIFICATE_FILE, LAUNCH_FILE, TOKEN_FILE
from malletrain.job_manager.launching.folder import JobFolder
from malletrain.runtime.access.credentials import FixedToken, SelfSignedToken, ServiceCredential, header_of
from malletrain.runtime.access.identity import Role
from malletrain.runtime.access.installation import open_installation, own_user
from malletrain.runtime.access.munge import Munge
from malletrain.runtime.access.service import AccessService
from malletrain.runtime.access.settings import AccessSettings
from malletrain.runtime.access.tokens import Tokens
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.server import ServiceHost
from tests.support.channels import stand_in, stand_in_credentials
from tests.support.clocks import ManualClock
from tests.support.job_secrets import job_secrets
from tests.support.waiting import wait_until_async

KEY = b"k" * 32


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "keys").mkdir()
    return Settings(state_dir=tmp_path, access=AccessSettings(munge="off"))


def test_a_service_signs_its_own_tokens_and_a_new_one_in_time() -> None:
    clock = ManualClock(1_800_000_000.0)
    tokens = Tokens(KEY, clock)
    credential = ServiceCredential(tokens, "monitor", clock).towards("job_manager")
    first = credential.token()
    identity = tokens.verify(first)
    assert (identity.user, identity.role, identity.audience) == ("monitor", Role.SERVICE, "job_manager")
    for _ in range(100):
        assert tokens.verify(credential.token()).expires >= clock.time() + 290
        clock.advance(37.0)
    assert credential.token() != first


def test_a_clock_that_is_set_back_leads_to_a_new_token() -> None:
    late, early = ManualClock(2000.0), ManualClock(1000.0)
    signed = [Tokens(KEY, clock).sign("monitor", Role.SERVICE, 600.0, audience="allocator") for clock in (late, early)]
    clock = ManualClock(2000.0)
    credential = SelfSignedToken(lambda: signed.pop(0), clock)
    first = credential.token()
    clock.set(1000.0)
    assert credential.token() != first


def test_no_credential_shows_its_token() -> None:
    token = Tokens(KEY, SystemClock()).sign("ada", Role.USER, 60.0)[0]
    fixed = FixedToken(token)
    assert header_of(fixed) == (("authorization", f"Bearer {token}"),)
    assert header_of(FixedToken("")) == ()
    assert token not in repr(fixed)
    assert token not in str(fixed)


def test_the_command_takes_the_token_that_it_is_given_before_the_owners(settings: Settings) -> None:
    assert caller_credential(settings, {}).token() == ""
    (settings.state_dir / "keys/owner.token").write_text("of-owner\n")
    given = settings.state_dir / "given"
    given.write_text("of-file\n")
    assert caller_credential(settings, {}).token() == "of-owner"
    of_file = {"MALLETRAIN_TOKEN_FILE": str(given)}
    assert caller_credential(settings, of_file).token() == "of-file"
    assert caller_credential(settings, {**of_file, "MALLETRAIN_TOKEN": " of-variable\n"}).token() == "of-variable"


def test_the_owners_token_is_read_again_when_it_was_renewed(settings: Settings) -> None:
    credential = owner_credential(settings)
    assert credential.token() == ""
    for text in ("one", "two"):
        (settings.state_dir / "keys/owner.token").write_text(text)
        assert credential.token() == text


def test_a_token_file_that_can_not_be_read_is_named(settings: Settings) -> None:
    with pytest.raises(InvalidInputError, match="MALLETRAIN_TOKEN_FILE: expected a file with a token"):
        caller_credential(settings, {"MALLETRAIN_TOKEN_FILE": str(settings.state_dir / "none")})


@pytest.mark.parametrize("content", [b"", b"\xff", b"two words", b"a" * 5000, "gärbage".encode()])
def test_what_is_no_token_is_refused_before_it_is_sent(settings: Settings, content: bytes) -> None:
    path = settings.state_dir / "given"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="MALLETRAIN_TOKEN_FILE: expected a token"):
        caller_credential(settings, {"MALLETRAIN_TOKEN_FILE": str(path)})
    if content and b"\xff" not in content:
        with pytest.raises(InvalidInputError, match="MALLETRAIN_TOKEN: expected a token"):
            caller_credential(settings, {"MALLETRAIN_TOKEN": content.decode()})


def test_a_token_file_without_an_end_is_not_read_to_it(settings: Settings) -> None:
    with pytest.raises(InvalidInputError, match="MALLETRAIN_TOKEN_FILE: expected a token"):
        caller_credential(settings, {"MALLETRAIN_TOKEN_FILE": "/dev/zero"})


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "the services do not know you: D."),
        (grpc.StatusCode.PERMISSION_DENIED, "not permitted: D"),
    ],
)
def test_refusals_are_explained(code: grpc.StatusCode, said: str) -> None:
    class Refusal(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return code

        def details(self) -> str:
            return "D"

    error = explain(Refusal())
    assert str(error).startswith(said)
    assert not error.wrong_use


def test_a_jobs_token_is_its_own_and_read_by_its_sidecar(tmp_path: Path) -> None:
    tokens = Tokens(KEY, SystemClock())
    job_secrets(tokens=tokens).write("j000007", JobFolder(tmp_path))
    path = tmp_path / TOKEN_FILE
    identity = tokens.verify(read_job_token(path))
    assert (identity.role, identity.job_id) == (Role.JOB, "j000007")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_job_token(tmp_path / "missing") == ""
    assert read_job_token(None) == ""


async def test_tokens_of_jobs_that_were_started_are_renewed(tmp_path: Path) -> None:
    started, waiting, gone = (JobFolder(tmp_path / name) for name in ("started", "waiting", "gone"))
    started.path.mkdir()
    waiting.path.mkdir()
    (started.path / LAUNCH_FILE).write_text("{}")
    jobs = [("j000001", gone, ""), ("j000002", waiting, "f000002"), ("j000003", started, "f000002")]
    keeping = asyncio.create_task(job_secrets(tokens=Tokens(KEY, SystemClock())).keep(lambda: jobs))
    await wait_until_async(lambda: (started.path / FEED_CERTIFICATE_FILE).exists())
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert read_job_token(started.path / TOKEN_FILE)
    assert (started.path / FEED_CERTIFICATE_FILE).read_text() == "for f000002"
    assert not any((waiting.path / name).exists() for name in (TOKEN_FILE, FEED_CERTIFICATE_FILE))


def test_the_sidecar_needs_no_library_for_tokens() -> None:
    code = "import sys, malletrain.client.sidecar; print([name for name in ('jwt', 'pydantic') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_token_for_a_munge_credential_is_renewed_in_time(tmp_path: Path) -> None:
    class Vouching(Munge):
        """Takes every credential for one of ours."""

        def make_credential(self) -> str:
            return "MUNGE:x"

        def user_of(self, credential: str) -> str:
            return own_user() if credential == "MUNGE:x" else ""

    munge, clock = Vouching("munge", "unmunge"), ManualClock()
    installation = open_installation(Settings(state_dir=tmp_path), SystemClock())
    interceptor = installation.interceptor("job_manager")
    host = ServiceHost("127.0.0.1:0", interceptor, credentials=stand_in_credentials())
    AccessService(installation, munge).register(host)
    credential = MungeToken(
        *(munge, stand_in("job_manager", f"127.0.0.1:{await host.start()}")), needed=True, monotonic=clock.monotonic
    )
    found = []
    for _ in range(4):
        found.append(await asyncio.to_thread(credential.token))
        clock.advance(200.0)
    await host.stop(0)
    assert [token == found[0] for token in found] == [True, True, False, False]
    assert installation.tokens.verify(found[-1]).user == own_user()
