"""Secrets leave the environment only into the frozen experiment."""

from pathlib import Path

import pytest

from mtrl_cli.config.compose import compose
from mtrl_cli.config.errors import ConfigError
from mtrl_cli.config.resolve import refuse_invalid, resolve

SECRET = "sk-3f9ab1"


def test_a_value_from_the_environment_is_saved_as_its_interpolation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MTRL_API_KEY", SECRET)
    composed = compose(None, ["name=run-${server.api_key}"])
    assert "${oc.env:MTRL_API_KEY,null}" in composed.yaml
    assert SECRET not in composed.yaml
    assert resolve(composed).name == f"run-{SECRET}"
    assert composed.redact(f"run-{SECRET} failed") == "run-*** failed"


@pytest.mark.parametrize(
    "override",
    [
        f"server.api_key={SECRET}",
        f"server.api_key=${{oc.env:NOT_SET,{SECRET}}}",
        f"task.params.token={SECRET}",
        f"env.headers.X-Anything={SECRET}",
        f"env.headers={{Authorization: Bearer {SECRET}}}",
        f"task.params={{password: {{a: {SECRET}}}}}",
    ],
)
def test_a_literal_is_masked_where_it_is_saved_and_wherever_it_was_copied(override: str) -> None:
    composed = compose(None, [override, "name=a-${server.api_key}"])
    assert SECRET not in composed.yaml
    assert all(SECRET not in one.shown for one in composed.overrides)


def test_a_literal_copied_by_hand_is_masked() -> None:
    composed = compose(None, [f"server.api_key={SECRET}", f"name=a-{SECRET}"])
    assert "name: a-***" in composed.yaml


@pytest.mark.parametrize(
    "url", [f"http://user:{SECRET}@host:1/x", f"http://{SECRET}@host", f"user:{SECRET}@host"]
)
def test_a_password_in_an_address_is_masked(url: str) -> None:
    composed = compose(None, [f"server.base_url='{url}'", "name='on ${server.base_url}'"])
    assert SECRET not in composed.yaml
    assert "host" in composed.yaml
    assert all(SECRET not in one.shown for one in composed.overrides)
    experiment = resolve(composed)
    assert SECRET not in composed.redact(f"{experiment.name}: {experiment.server.base_url}")
    with pytest.raises(ConfigError) as refused:
        refuse_invalid(experiment, composed, training=True)
    assert SECRET not in composed.redact(f"{refused.value.message} {refused.value.at}")


def test_a_mask_in_an_address_is_not_taken_for_the_secret(tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(compose(None, [f"env.base_url=http://u:{SECRET}@host"]).yaml)
    with pytest.raises(ConfigError, match=r"env\.base_url was masked"):
        resolve(compose(str(saved), []))


def test_a_mask_is_not_taken_for_the_secret(tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(compose(None, [f"server.api_key={SECRET}"]).yaml)
    with pytest.raises(ConfigError, match=r"server\.api_key was masked"):
        resolve(compose(str(saved), []))


def test_an_unreadable_secret_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        compose(None, [f"server.api_key={SECRET}=="])
    assert SECRET not in f"{caught.value.message} {caught.value.at} {caught.value.hint}"


def test_which_secrets_are_set_is_known_without_reading_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("IS_SET", SECRET)
    composed = compose(
        None, ["server.api_key=${oc.env:NOT_SET}", "task.params.token=${oc.env:IS_SET,null}"]
    )
    found = {one.key: (one.variable, one.present, one.required) for one in composed.secrets}
    assert found == {
        "server.api_key": ("NOT_SET", False, True),
        "task.params.token": ("IS_SET", True, False),
    }
    assert resolve(composed, secrets=False).task.params == {"token": "***"}


def test_plain_values_from_the_environment_are_not_taken_for_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STEPS", "1000")
    composed = compose(None, ["train.steps=${oc.env:STEPS}"])
    assert resolve(composed).train.steps == 1000
    assert composed.redact("1000 steps") == "1000 steps"
