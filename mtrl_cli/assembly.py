"""The composition root: from an experiment to the parts that play and train it.

This is the one place that knows concrete servers, environments and tasks. `assemble` borrows the
parts in order and returns them in the opposite order, whatever happens in between.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mtrl_cli.chat.renderer import RendererChat
from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.config.schema import Experiment, ServerConfig, ServerKind
from mtrl_cli.errors import UsageError
from mtrl_cli.rollout.ports import Chat, EnvironmentFactory, Task
from mtrl_cli.rollout.settle import finish
from mtrl_cli.runs.folder import RunFolder
from mtrl_cli.servers.interface import TrainingService


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run works with."""

    service: TrainingService
    chat: Chat
    task: Task
    envs: EnvironmentFactory
    vocab: int
    """Size of the tokenizer's vocabulary."""
    server: str
    """The server's address, for people."""
