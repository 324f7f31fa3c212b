"""`python -m mtrl_cli.local`: the embedded policy server's entry point.

Nothing is imported here that imports numpy: the BLAS must be told first to keep to one thread,
as the engine brings its own two, and BLAS's collapse on a busy machine.
"""

from __future__ import annotations

if __name__ == "__main__":
    import signal

    import mtrl_cli.quiet  # noqa: F401

    # `mtrl serve`, which became this process, keeps a Ctrl-C back until it can be answered.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

for _name in ("OPENBLAS", "OMP", "MKL", "BLIS", "VECLIB", "NUMEXPR"):
    _suffix = "_MAXIMUM_THREADS" if _name == "VECLIB" else "_NUM_THREADS"
    os.environ.setdefault(_name + _suffix, "1")

ASSETS = Path(__file__).resolve().parent.parent / "assets"
USAGE = 2


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="mtrl serve", description="Serve a small policy over the Tinker HTTP API."
    )
    add = made.add_argument
    add("--store", type=Path, required=True, metavar="DIR", help="folder of checkpoints")
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=int, default=0, help="port to listen on (default: a free one)")
    add("--base", type=Path, metavar="DIR", help="folder of the base model (default: packaged)")
    add("--base-model", default="mtrl-tiny", metavar="NAME", help="what clients call it")
    add("--api-key-env", metavar="NAME", help="variable that holds the key clients must send")
    add(
        "--session-ttl",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="free a session after this long without a heartbeat (default: 120)",
    )
    add(
        "--poll",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="longest wait of one retrieve_future (default: 30)",
    )
    add(
        "--max-rows",
        type=int,
        default=64,
        metavar="N",
        help="sequences sampled together (default: 64)",
    )
    add(
        "--keep-answers",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="how long a finished answer may be asked for again (default: 3600)",
    )
    add("--parent-pid", type=int, metavar="PID", help="end when this process is gone")
    add("--ready-file", type=Path, metavar="FILE", help="also write the ready line here")
    add("--json", action="store_true", help="print the ready line on a terminal too")
    return made


def _api_key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        from mtrl_cli.local.server import StartError

        raise StartError(f"--api-key-env: the variable {name} is not set; set it to the key")
    return key


def run(arguments: argparse.Namespace) -> int:
    """Start and serve; raises `StartError` with one line when that is not possible."""
    import asyncio

    from mtrl_cli.local.engine import load_base
    from mtrl_cli.local.server import Place, StartError, listen, serve
    from mtrl_cli.local.service import Settings

    for flag in ("session_ttl", "poll", "max_rows", "keep_answers"):
        if not 0 < getattr(arguments, flag) < 1e9:
            raise StartError(f"--{flag.replace('_', '-')}: must be above 0")
    if not 0 <= arguments.port <= 65535:
        raise StartError(f"--port: {arguments.port} is outside 0..65535")
    folder = arguments.base or ASSETS / "mtrl-tiny"
    try:
        shape, base = load_base(folder)
    except (OSError, ValueError, KeyError) as error:
        raise StartError(f"--base: no usable model in {folder} ({error})") from None
    place = Place(
        arguments.host,
        arguments.port,
        _api_key(arguments.api_key_env),
        arguments.parent_pid,
        arguments.ready_file,
        arguments.json,
    )
    settings = Settings(
        store=arguments.store.expanduser().resolve(),
        base_model=arguments.base_model,
        session_ttl=arguments.session_ttl,
        patience=arguments.poll,
        max_rows=arguments.max_rows,
        keep_answers=arguments.keep_answers,
    )
    listener = listen(place.host, place.port)
    try:
        return asyncio.run(serve(place, settings, shape, base, listener))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StartError(
            f"--store: {settings.store} cannot be used as a folder: {reason}"
        ) from None
    finally:
        listener.close()


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 ended as told, 2 could not start (one line on stderr says why)."""
    arguments = parser().parse_args(argv)
    from mtrl_cli.local.server import StartError

    try:
        return run(arguments)
    except StartError as error:
        sys.stderr.write(f"mtrl serve: {error}\n")
        return USAGE


if __name__ == "__main__":
    raise SystemExit(main())
