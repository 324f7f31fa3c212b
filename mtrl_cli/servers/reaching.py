"""The first calls to a training service of any kind: is it there, and has it the base model?

Nothing is created by them, so they may be made again, within one short budget.
"""

import asyncio
import difflib
from collections.abc import Callable, Mapping
from typing import Any

from mtrl_cli.errors import UsageError
from mtrl_cli.servers.budget import Budget
from mtrl_cli.servers.errors import ServerError, Verdict
from mtrl_cli.servers.transport import NoReply, Reply, Transport
from mtrl_cli.servers.wording import one_line

_ATTEMPTS = 4


async def reach(
    transport: Transport,
    judge: Callable[[Reply], Verdict],
    method: str,
    path: str,
    body: bytes | None,
    *,
    seconds: float,
    headers: Mapping[str, str] | None = None,
    start: str = "start it",
) -> Reply | Verdict:
    """The reply, where it is 200 or 404; else the verdict on the last attempt.

    Args:
        judge: of a reply with another status.
        seconds: the budget, repetitions included.
        start: what to do where no server answers.

    Raises:
        ServerError: no server answers.
    """
    budget = Budget(seconds, _ATTEMPTS)
    while True:
        try:
            reply = await transport.single(method, path, body, budget.left, headers)
        except NoReply as error:
            if error.verdict.status is not None:
                return error.verdict
            raise ServerError(
                f"no training server answers at {transport.address.url} ({error}): "
                f"{start}, or correct server.base_url"
            ) from None
        if reply.status in (200, 404):
            return reply
        verdict = judge(reply)
        pause = budget.pause(verdict) if verdict.outcome == "transient" else None
        if pause is None:
            return verdict
        await asyncio.sleep(pause)


def offered_models(reply: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """What a server says of its base models, by name; empty where it lists none."""
    models = reply.get("supported_models")
    return {
        name: model
        for model in (models if isinstance(models, list) else ())
        if isinstance(model, dict) and isinstance(name := model.get("model_name"), str) and name
    }


def check_offered(base_model: str, offered: Mapping[str, Any], url: str) -> None:
    """Raises: UsageError: the base model is not among those that are offered."""
    if base_model in offered:
        return
    near = difflib.get_close_matches(base_model, offered, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    shown = ", ".join(sorted(offered)[:10]) + (", …" if len(offered) > 10 else "")
    raise UsageError(
        one_line(
            f"server.base_model: {base_model!r} is not served by {url}; {hint}served: {shown}", 600
        )
    )
