"""`python -m mtrl_cli.local.tidy --store DIR`: what a store holds, and removing from it.

Without ``--remove`` a line of JSON for each checkpoint goes to stdout: its URI, its size in bytes,
its time. With it the URIs that come on stdin, one a line, are removed, each with a line of what is
gone; and models that are left without a checkpoint, and what writers that died left half written,
a day later. Any number of servers may write meanwhile, and others may remove: a file is there or
gone, so whoever is killed in the middle has removed what it had told, and nothing by half.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mtrl_cli.local.store import Checkpoint, MissingError, Store, parse_uri

DAY = 86_400.0


def _print(item: Checkpoint) -> None:
    facts = {"uri": item.ref.uri, "size": item.size, "time": item.time}
    sys.stdout.write(json.dumps(facts) + "\n")


def remove(store: Store, uris: Sequence[str]) -> None:
    """Remove the checkpoints that are there, and print them."""
    for model in sorted({parse_uri(uri).model_id for uri in uris}):
        held = {item.ref.uri: item for item in store.checkpoints(model)}
        for item in [held.pop(uri) for uri in uris if uri in held]:
            with contextlib.suppress(MissingError):  # somebody else was quicker
                store.delete(item.ref)
                _print(item)
        if not held:
            store.forget(model, before=time.time() - DAY)
    store.sweep_torn(before=time.time() - DAY)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 with a line on stderr where there is no store."""
    parser = argparse.ArgumentParser(prog="mtrl store")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--remove", action="store_true")
    arguments = parser.parse_args(argv)
    root: Path = arguments.store
    try:
        if not (root / "models").is_dir():
            raise FileNotFoundError(2, "there is no store here", str(root))
        store = Store(root)
    except OSError as error:
        sys.stderr.write(f"--store: {root}: {(error.strerror or str(error)).lower()}\n")
        return 2
    try:
        if arguments.remove:
            remove(store, sys.stdin.read().split())
        else:
            for model in store.models():
                for item in store.checkpoints(model):
                    _print(item)
    finally:
        store.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
