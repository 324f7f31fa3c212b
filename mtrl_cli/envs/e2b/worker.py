"""Inside a sandbox: one game, spoken to in JSON lines over stdin and stdout.

This file is uploaded and run alone, so it imports nothing but the standard library and keeps to
Python 3.8. Its arguments name the game's class, ``module:Class`` or ``path.py:Class``, and give
the keyword arguments of the class as a JSON object.

A request is one line ``{"id": 7, "op": "reset" | "step" | "close", "data": {…}}``; its answer is
``{"id": 7, "ok": {…}}`` or ``{"id": 7, "error": {"kind": …, "message": …}}``, with a ``trace``
where the game raised. An id that was
answered is answered again from memory, and nothing is executed twice. Empty lines are skipped, so
that a line which was cut off can be ended by the next one. The first line out has the id 0: the
game is loaded, or it could not be.

Kinds of errors: ``load`` (the class cannot be had), ``tool`` (the game refuses the action; its
exception is called ToolError), ``fault`` (the game raised, or returned no sense), ``protocol``.

Stdout carries nothing but answers: what the game prints goes to stderr, and its stdin is empty.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

LONGEST = 4 * 1024 * 1024
"""Bytes of a line, either way."""

LONGEST_TOLD, LONGEST_TRACE = 1000, 16_000
"""Characters of an error's first line, and of its traceback."""

KEPT = 16
"""How many answers are remembered."""


class Refused(Exception):  # noqa: N818
    """An answer that is an error; ``trace`` is the game's traceback, if it raised."""

    def __init__(self, kind: str, message: str, trace: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace


def private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Keep stdin and stdout for the protocol, and give the game others."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stderr
    return requests, answers


def load(entrypoint: str) -> Any:
    """Raises: Refused: the class cannot be loaded."""
    place, _, name = entrypoint.rpartition(":")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        if place.endswith(".py"):
            sys.path.insert(0, str(Path(place).resolve().parent))
            spec = importlib.util.spec_from_file_location("mtrl_game", place)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules["mtrl_game"] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        return getattr(module, name)
    except BaseException as error:
        raise Refused("load", told(error)) from error


class Game:
    """The game's class and its one instance."""

    def __init__(self, made_by: Any, params: dict[str, Any]) -> None:
        self._made_by = made_by
        self._params = params
        self._game: Any = None

    def execute(self, operation: str, data: dict[str, Any]) -> Any:
        """Raises: Refused."""
        try:
            if operation == "reset":
                if self._game is None:
                    self._game = self._made_by(**self._params)
                return {"observation": self._game.reset(**data)}
            if operation == "step":
                if self._game is None:
                    raise Refused("fault", "step before reset")
                return self._game.step(**data)
            if operation == "close":
                end = getattr(self._game, "close", None)
                return {} if end is None else end() or {}
        except Refused:
            raise
        except BaseException as error:
            tool = any(kind.__name__ == "ToolError" for kind in type(error).__mro__)
            raise Refused("tool", line(error)) if tool else fault(error) from error
        raise Refused("protocol", f"no operation {operation!r}")


def answer(game: Game, number: Any, request: dict[str, Any]) -> bytes:
    """The line that answers a request."""
    try:
        result = game.execute(str(request.get("op")), request.get("data") or {})
        try:
            text = json.dumps({"id": number, "ok": result})
        except BaseException as error:  # the game's own mappings, too
            raise Refused("fault", f"it returned what is not JSON: {line(error)}") from error
        if len(text) > LONGEST:
            raise Refused("fault", f"it returned {len(text)} bytes; at most {LONGEST} are taken")
        return text.encode()
    except Refused as refused:
        return failure(number, refused)


def failure(number: Any, refused: Refused) -> bytes:
    error = {"kind": refused.kind, "message": str(refused)[:2000]}
    if refused.trace is not None:
        error["trace"] = refused.trace
    return json.dumps({"id": number, "error": error}).encode()


def serve(entrypoint: str, params: dict[str, Any]) -> None:
    """Answer until stdin ends or the game is closed."""
    requests, answers = private_streams()

    def say(text: bytes) -> None:
        answers.write(text + b"\n")
        answers.flush()

    try:
        game = Game(load(entrypoint), params)
    except Refused as refused:
        say(failure(0, refused))
        return
    say(json.dumps({"id": 0, "ok": {"python": sys.version.split()[0]}}).encode())
    answered: OrderedDict[Any, bytes] = OrderedDict()
    process = os.getpid()
    while True:
        text = requests.readline(LONGEST + 1)
        if not text:
            return
        if not text.strip():
            continue
        try:
            request = json.loads(text)
            number = request["id"]
        except (ValueError, LookupError, TypeError):
            say(failure(None, Refused("protocol", "a line that is no request")))
            continue
        if number not in answered:
            answered[number] = answer(game, number, request)
            if os.getpid() != process:
                os._exit(0)  # a child that the game forked: only its parent answers
            while len(answered) > KEPT:
                answered.popitem(last=False)
        say(answered[number])
        if request.get("op") == "close":
            return


def fault(error: BaseException) -> Refused:
    """The game raised: its innermost line outside of this file is named."""
    frames = traceback.extract_tb(error.__traceback__)
    game = [frame for frame in frames if frame.filename != __file__]
    place = f" ({game[-1].filename}:{game[-1].lineno})" if game else ""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Refused("fault", told(error)[:LONGEST_TOLD] + place, trace[-LONGEST_TRACE:])


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {line(error)}"


def line(error: BaseException) -> str:
    try:
        text = str(error).strip()
    except BaseException:  # the game's own code, too
        text = ""
    return text.splitlines()[0] if text else "(no message)"


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
