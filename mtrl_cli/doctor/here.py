"""What can be checked without contacting anything: python, configuration, packages, folders, task,
tokenizer, template."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from omegaconf import OmegaConf

from mtrl_cli.assembly import RendererChat, chat_of, check_append_only, task_of
from mtrl_cli.config.compose import Composed
from mtrl_cli.config.errors import key_of
from mtrl_cli.config.resolve import resolve
from mtrl_cli.config.rules.validate import validate
from mtrl_cli.config.schema import Experiment
from mtrl_cli.config.secrets import SecretKey
from mtrl_cli.doctor import machine
from mtrl_cli.doctor.report import Found, Report, Speaker
from mtrl_cli.rollout.ports import Task
from mtrl_cli.training.policies.choose import ChosenPolicy, choose_policy

_ABSENT = "unset"
"""Stands for a secret that is not set, which nothing that needs it is given."""


@dataclass(frozen=True, slots=True)
class Here:
    """What was found: an experiment that is valid, and its parts as far as they are."""

    experiment: Experiment
    chosen: ChosenPolicy | None
    """What ``policy=`` names; None for the base model."""
    task: Found[Task]
    chat: Found[RendererChat]
    template: Found[None]


async def look_around(composed: Composed, report: Report) -> Here | None:
    """Check everything; None where the configuration is not valid."""

    async def packages(speaker: Speaker) -> None:
        experiment = configured.value[0] if configured.values else None
        await machine.packages(speaker, experiment)

    await report.check("python", machine.python)
    configured = await report.check("configuration", lambda s: _configured(s, composed, report))
    await report.check("packages", packages)
    if not configured.values:
        return None
    experiment, chosen = configured.value
    await report.check("folders", lambda s: machine.folders(s, experiment))
    task = await report.check("task", lambda s: _task(s, experiment))
    chat = await report.check("tokenizer", lambda s: _chat(s, experiment))
    template = await report.check(
        "template", lambda s: _appends(s, chat.value, task.value), needs=(task, chat)
    )
    return Here(experiment, chosen, task, chat, template)


def secrets_of(section: str) -> Found[None]:
    """The check of a section's secrets, for those that need them."""
    return Found(f"{section} secrets")


async def _configured(
    speaker: Speaker, composed: Composed, report: Report
) -> tuple[Experiment, ChosenPolicy | None]:
    """The experiment, and the policy that it asks for.

    Raises:
        MtrlError: it cannot be resolved, or there is no such policy.
    """
    for secret in composed.secrets:
        _tell_secret(Speaker(report, _topic(secret)), secret)
    lacking = [one.key for one in composed.secrets if one.required and not one.present]
    experiment = _resolved(composed, lacking)
    problems = validate(experiment, training=experiment.policy is None)
    for problem in problems:
        speaker.fail(problem, f"it was set by {composed.origin(key_of(problem))}")
    if problems:
        return experiment, None
    chosen = choose_policy(experiment, experiment.policy)
    if chosen is not None:
        speaker.ok(f"policy {experiment.policy} is {chosen.uri}")
    speaker.ok(f"{experiment.name} composes and is valid ({composed.file})")
    return experiment, chosen


def _resolved(composed: Composed, lacking: Sequence[str]) -> Experiment:
    """The experiment; what lacks has a value that is good for nothing.

    Raises:
        MtrlError: the configuration cannot be resolved.
    """
    if not lacking:
        return resolve(composed)
    config = composed.config.copy()
    for key in lacking:
        OmegaConf.update(config, key, _ABSENT)
    return resolve(replace(composed, config=config))


def _topic(secret: SecretKey) -> str:
    section = secret.key.partition(".")[0]
    return secrets_of(section).topic if section in ("server", "env") else "secrets"


def _tell_secret(speaker: Speaker, secret: SecretKey) -> None:
    if secret.variable is None:
        speaker.warn(
            f"{secret.key} is a literal in the configuration",
            f"write '{secret.key}=${{oc.env:NAME}}', and export NAME",
        )
    elif secret.present:
        speaker.ok(f"{secret.key}: {secret.variable} is set")
    elif secret.required:
        speaker.fail(f"{secret.key}: {secret.variable} is not set", f"export {secret.variable}=…")
    else:
        speaker.ok(f"{secret.key}: {secret.variable} is not set, and need not be")


async def _task(speaker: Speaker, experiment: Experiment) -> Task:
    task = await asyncio.to_thread(task_of, experiment)
    speaker.ok(f"{experiment.task.entrypoint} loads")
    return task


async def _chat(speaker: Speaker, experiment: Experiment) -> RendererChat:
    server = experiment.server
    chat = await asyncio.to_thread(chat_of, server)
    speaker.ok(f"{server.tokenizer} has {len(chat.tokenizer):,} ids; renderer {server.renderer}")
    return chat


async def _appends(speaker: Speaker, chat: RendererChat, task: Task) -> None:
    if getattr(task, "tools_offered", False):
        speaker.ok("its tools come from the environment, and are tried there")
        return
    await asyncio.to_thread(check_append_only, chat, task)
    shown = ", ".join(f"{token} {chat.tokenizer.decode(token)!r}" for token in chat.stop_ids)
    speaker.ok(f"a turn is extended by appending; stop ids: {shown}")
