"""Values of variables that look like secrets are not shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.redaction import HIDDEN_VALUE, names_secret, redact_environment
from malletrain.job_manager.wire import spec_message

PARTS = ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL", "COOKIE", "AUTH"]
LETTERS = st.text("ABXYZabxyz_019", max_size=8)


@pytest.mark.parametrize(
    "name",
    ["WANDB_API_KEY", "HF_TOKEN", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "apiKey", "GOOGLE_APPLICATION_CREDENTIALS"],
)
def test_names_of_secrets(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize(
    "name",
    ["PATH", "HOME", "OMP_NUM_THREADS", "GREETING", "CUDA_VISIBLE_DEVICES", "A", "PASS", "TOKENIZERS_PARALLELISM"],
)
def test_names_of_other_values(name: str) -> None:
    assert not names_secret(name)


@given(LETTERS, st.sampled_from(PARTS), st.sampled_from(["", "S", "_FILE", "0", "S_2"]), st.booleans())
def test_a_word_of_the_name_is_enough(before: str, part: str, after: str, lower: bool) -> None:
    name = before + (part.lower() if lower else part.title()) + after
    assert redact_environment({name: "hunter2"}) == {name: HIDDEN_VALUE}


@given(st.dictionaries(LETTERS, st.text(max_size=5)))
def test_names_stay_and_values_are_as_they_were_or_hidden(environment: dict[str, str]) -> None:
    shown = redact_environment(environment)
    assert shown == {name: HIDDEN_VALUE if names_secret(name) else value for name, value in environment.items()}


def test_no_message_has_them() -> None:
    spec = JobSpec(
        name="job",
        command=("true",),
        working_directory="/",
        min_nodes=1,
        max_nodes=2,
        environment={"API_TOKEN": "hunter2", "A": "1"},
    )
    assert dict(spec_message(spec).environment) == {"API_TOKEN": "***", "A": "1"}
    assert spec.environment["API_TOKEN"] == "hunter2", "workers get the value"
