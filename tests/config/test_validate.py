"""Ranges and rules across keys."""

import typing
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.config.rules.validate import BOUNDS, validate
from mtrl_cli.config.schema import Experiment, Loss


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return resolve(compose(None, []))


def changed(experiment: Any, key: str, value: object) -> Any:
    name, _, below = key.partition(".")
    return replace(
        experiment, **{name: changed(getattr(experiment, name), below, value) if below else value}
    )


def numbers(section: type, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for item in fields(section):
        kind = typing.get_type_hints(section)[item.name]
        if is_dataclass(kind):
            found |= numbers(typing.cast("type", kind), f"{prefix}{item.name}.")
        elif {int, float} & {kind, *typing.get_args(kind)} and typing.get_origin(kind) is not dict:
            found.add(prefix + item.name)
    return found


def test_the_default_is_valid(experiment: Experiment) -> None:
    assert validate(experiment) == []


def test_every_number_of_the_schema_has_a_bound() -> None:
    assert set(BOUNDS) == numbers(Experiment)


@pytest.mark.parametrize("key", sorted(BOUNDS))
def test_no_number_may_be_nan(experiment: Experiment, key: str) -> None:
    (problem,) = validate(changed(experiment, key, float("nan")))
    assert problem.startswith(f"{key} is nan, which is not a number; allowed: ")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("group.size", 0, "group.size is 0; allowed: from 1 to 100,000"),
        ("group.size", 1, "group.size is 1; allowed: at least 2 for training"),
        ("group.temperature", 0.0, "group.temperature is 0; allowed: above 0 for training"),
        ("group.top_p", 0.9, "group.top_p is 0.9; allowed: 1.0 for training"),
        ("group.top_k", 5, "group.top_k is 5; allowed: -1 for training"),
        ("group.top_k", 0, "group.top_k is 0; allowed: -1 (off) or at least 1"),
        ("group.floor", 9, "group.floor is 9; allowed: at most group.size (8)"),
        ("budget.turn_tokens", 0, "budget.turn_tokens is 0; allowed: at least 1"),
        ("budget.trajectory_tokens", 4096, "budget.trajectory_tokens is 4096; allowed: at most"),
        ("budget.turn_tokens", 2000, "budget.turn_tokens is 2000; allowed: at most budget."),
        ("train.kl", -0.1, "train.kl is -0.1; allowed: from 0 to 1,000,000"),
        ("train.kl", float("inf"), "train.kl is inf, which is not finite; allowed: from 0"),
        (
            "train.max_tokens_per_call",
            500,
            "train.max_tokens_per_call is 500; allowed: 0 (one call), or at least "
            "budget.trajectory_tokens (1024): a trajectory is not cut",
        ),
        (
            "train.loss_config",
            {"clip_low_threshold": 0.8},
            "train.loss_config.clip_low_threshold is 0.8; allowed: importance_sampling takes no "
            "parameter",
        ),
        ("train.lora_rank", 0, "train.lora_rank is 0; allowed: from 1 to 4,096"),
        ("train.learning_rate", 1e30, "train.learning_rate is 1e+30; allowed: from 0 to 1,000,000"),
        ("train.lora_alpha", 1e300, "train.lora_alpha is 1e+300; allowed: from 0.001 to 1,000,000"),
        ("env.step_timeout", 0.0, "env.step_timeout is 0; allowed: above 0"),
        ("eval.games", -1, "eval.games is -1; allowed: from 0 to 1,000,000"),
        ("env.entrypoint", "nothing", "env.entrypoint is 'nothing'; allowed: module:Class"),
        ("server.base_url", "localhost:1", "server.base_url is 'localhost:1'; allowed: an address"),
        *(
            (key, url, f"{key} is {url!r}; allowed: http://HOST:PORT/PATH with a port")
            for key, url in (
                ("env.base_url", "http://[::1"),
                ("env.base_url", "http://"),
                ("server.base_url", "http://host:99999"),
                ("server.base_url", "http://host:port"),
                ("env.base_url", "https://host/path?key=1"),
                ("env.base_url", "https://host/#top"),
            )
        ),
        (
            "server.store",
            "~no-such-user/x",
            "server.store is '~no-such-user/x'; allowed: ~ or ~USER",
        ),
        ("server.tokenizer", "~no-such-user/x", "server.tokenizer is '~no-such-user/x'; allowed"),
        ("policy", "tinker://x", "policy is 'tinker://x'; allowed: null for training"),
    ],
)
def test_a_value_out_of_range(
    experiment: Experiment, key: str, value: object, problem: str
) -> None:
    (found,) = validate(changed(experiment, key, value))
    assert found.startswith(problem)


@pytest.mark.parametrize("loss", [Loss.ppo, Loss.cispo])
def test_the_parameters_of_a_clipped_loss(experiment: Experiment, loss: Loss) -> None:
    def problems(**config: float) -> list[str]:
        return validate(
            changed(changed(experiment, "train.loss", loss), "train.loss_config", config)
        )

    assert problems() == []
    assert problems(clip_low_threshold=0.0, clip_high_threshold=4.0) == []
    (unknown,) = problems(clip_low=0.8)
    assert unknown == (
        f"train.loss_config.clip_low is 0.8; allowed: {loss.value} takes clip_low_threshold, "
        "clip_high_threshold"
    )
    (distance,) = problems(clip_high_threshold=0.2)
    assert distance.startswith(
        "train.loss_config.clip_high_threshold is 0.2; allowed: at least 1: the largest ratio"
    )
    (above,) = problems(clip_low_threshold=1.2)
    assert above.startswith("train.loss_config.clip_low_threshold is 1.2; allowed: from 0 to 1")
    (nan,) = problems(clip_low_threshold=float("nan"))
    assert nan.endswith(
        "clip_low_threshold is nan, which is not a number; allowed: any finite number"
    )


def test_all_problems_are_told_at_once(experiment: Experiment) -> None:
    wrong = changed(changed(experiment, "group.size", 0), "train.steps", 0)
    assert len(validate(wrong)) == 2


def test_playing_asks_less_than_training(experiment: Experiment) -> None:
    single = changed(changed(experiment, "group.size", 1), "group.temperature", 0.0)
    assert validate(single, training=False) == []
    assert validate(changed(single, "policy", "mtrl://x"), training=False) == []
