"""Choosing a renderer of the ``renderers`` package by its name."""

import difflib
from collections.abc import Mapping
from typing import Any

from mtrl_cli.chat.errors import ChatConfigError
from mtrl_cli.chat.tokenizer import ChatTokenizer
from mtrl_cli.light_import import light_packages


def make_renderer(tokenizer: ChatTokenizer, name: str, options: Mapping[str, Any]) -> Any:
    """Raises: ChatConfigError."""
    light_packages("renderers")  # its __init__ imports an SDK: 1.4 s of CPU
    from renderers.configs import config_from_name

    try:
        config = config_from_name(name)
    except (KeyError, ValueError) as error:
        raise ChatConfigError(_unknown_renderer(name)) from error
    if config is None:
        raise ChatConfigError("renderer 'auto' guesses by a model's name: name the renderer")
    fields = type(config).model_fields
    chosen = dict(options)
    if "enable_thinking" in fields:
        chosen.setdefault("enable_thinking", False)
    try:
        config = type(config)(**chosen)
        if name == "qwen3":
            from renderers.qwen3 import Qwen3Renderer

            return Qwen3Renderer(tokenizer, config)
        from renderers.base import create_renderer

        return create_renderer(tokenizer, config)
    except Exception as error:
        reason = reason_of(error)
        raise ChatConfigError(
            f"renderer {name!r} cannot use tokenizer {tokenizer.name_or_path!r}: {reason}"
        ) from error


def reason_of(error: Exception) -> str:
    """The first line that says something; pydantic's own begins with a count."""
    problems = getattr(error, "errors", None)
    if callable(problems):
        return "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'its options'}: {problem['msg']}"
            for problem in problems()
        )
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _unknown_renderer(name: str) -> str:
    from renderers.base import RENDERER_REGISTRY, _populate_registry

    _populate_registry()
    known = sorted(RENDERER_REGISTRY)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"write one of {', '.join(known)}"
    return f"renderer {name!r} does not exist: {hint}"
