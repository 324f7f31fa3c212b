"""A recorded episode told once more by the run's own tokenizer, template and task.

This is the text side of `mtrl verify`: what the prompt, a sampled turn and a bridge must be,
given what the run recorded beside the tokens. It implements `runs.verify.episodes.Retelling`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtrl_cli.rollout import seeds
from mtrl_cli.rollout.ports import Chat, Task
from mtrl_cli.runs.verify.episodes import Call, Said

if TYPE_CHECKING:
    from mtrl_cli.config.schema import Experiment


class RunRetelling:
    """See the module's docstring."""

    def __init__(self, chat: Chat, task: Task, *, harnessed: bool) -> None:
        self._chat = chat
        self._task = task
        self._tools = task.tools
        self._harnessed = harnessed
        self.vocabulary = chat.vocabulary
        self.unfinished_reward = task.unfinished_reward

    def task(self, kind: str, seed: int, group: int) -> str:
        stream = seeds.training_task(seed, group)
        if kind == "rollout":
            stream = seeds.derive("task/rollout", seed, group)
        return self._task.sample(stream).id

    def prompt(self, opening: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        return self._chat.prompt(opening, self._tools)

    def said(self, ids: Sequence[int]) -> Said:
        turn = self._chat.read(ids, self._tools)
        calls = tuple((call.name, call.error is not None) for call in turn.calls)
        return Said(turn.text, None if self._harnessed else calls)

    def bridge(self, ids: Sequence[int], calls: Sequence[Call]) -> Sequence[int]:
        answers = [{"role": "tool", "name": call.name, "content": call.answer} for call in calls]
        return self._chat.bridge(ids, answers)


def retelling_of(run: Path) -> RunRetelling:
    """The retelling of the run in this folder, from its ``config.yaml``.

    Raises:
        MtrlError: the configuration does not compose, or the tokenizer, the template or the task
            is not to be had here.
    """
    from mtrl_cli.assembly import harness_factory, reading_parts

    chat, task = reading_parts(_experiment(run), _listed(run))
    return RunRetelling(chat, task, harnessed=harness_factory(task) is not None)


def decoder_of(run: Path) -> Callable[[Sequence[int]], str]:
    """What gives the text of tokens of the run in this folder.

    Raises:
        MtrlError: the configuration does not compose, or the tokenizer is not to be had here.
    """
    from mtrl_cli.assembly import load_tokenizer

    return load_tokenizer(_experiment(run).server.tokenizer).decode


def _experiment(run: Path) -> "Experiment":
    from mtrl_cli.config.compose import compose
    from mtrl_cli.config.resolve import resolve

    return resolve(compose(str(run / "config.yaml")), secrets=False)


def _listed(run: Path) -> Mapping[str, Any] | None:
    """The tools that the environment listed, where it did; others tell of a damaged run.json."""
    try:
        listing = json.loads((run / "run.json").read_text()).get("tools")
    except (OSError, ValueError, AttributeError):
        return None
    return listing if isinstance(listing, dict) else None
