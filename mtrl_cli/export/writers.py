"""The formats: where rows or batches become bytes.

A file is written beside its name and renamed when it is whole. ``jsonl`` is one row a line (see
`rows`). ``parquet`` has the same columns; ``opening`` and ``turns``, which nest freely, are JSON
text. ``tinker`` is one Datum a line, in the JSON of the Tinker API's ``forward_backward``, exactly
as a training call of this step sends it: shifted by one, advantages with their token weights.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtrl_cli.errors import UsageError
from mtrl_cli.export.rows import Row, lacks_reference, rows, step_batch
from mtrl_cli.runs.commits import Commit
from mtrl_cli.servers.tinker.codec import datum_json
from mtrl_cli.training.plan import TrainingPlan
from mtrl_cli.training.step.batch import build_batch

_WITHOUT_KL = (
    "the advantages of some steps lack the KL term of train.kl: an earlier version of mtrl did not"
    " record its reference logprobs"
)


def export(
    form: str, plan: TrainingPlan, folder: Path, commits: Sequence[Commit], out: Path
) -> tuple[int, list[str]]:
    """Write the trajectories of ``commits`` to ``out``; how many, and what a reader must know.

    Raises:
        UsageError: pyarrow is missing, or the file cannot be written.
        MtrlError: a trajectory file is damaged.
    """
    notes = []
    if any(plan.kl(one.step - 1) and lacks_reference(folder, one) for one in commits):
        notes.append(_WITHOUT_KL)
    write = _WRITERS[form]
    beside = out.with_name(out.name + ".tmp")
    try:
        count = write(plan, folder, commits, beside)
        beside.replace(out)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}; write another path") from error
    finally:
        beside.unlink(missing_ok=True)
    return count, notes


def _write_lines(lines: Iterable[bytes], out: Path) -> int:
    out.touch(mode=0o600)
    count = 0
    with out.open("wb") as file:
        for line in lines:
            file.write(line + b"\n")
            count += 1
    return count


def _jsonl(plan: TrainingPlan, folder: Path, commits: Sequence[Commit], out: Path) -> int:
    every = (row for commit in commits for row in rows(plan, folder, commit))
    lines = (json.dumps(row, separators=(",", ":"), allow_nan=False).encode() for row in every)
    return _write_lines(lines, out)


def _tinker(plan: TrainingPlan, folder: Path, commits: Sequence[Commit], out: Path) -> int:
    def lines() -> Iterator[bytes]:
        for commit in commits:
            batch, penalty = step_batch(plan, folder, commit)
            built = build_batch(batch, plan.advantage, penalty, plan.weighting)
            yield from map(datum_json, built.data)

    return _write_lines(lines(), out)


def _parquet(plan: TrainingPlan, folder: Path, commits: Sequence[Commit], out: Path) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError(
            "--format parquet needs pyarrow: python -m pip install 'mtrl-cli[parquet]'"
        ) from error
    schema = pa.schema([(name, _column(pa, kind)) for name, kind in _COLUMNS.items()])
    out.touch(mode=0o600)
    count = 0
    with pq.ParquetWriter(out, schema, compression="zstd") as file:
        for commit in commits:
            table = [_flat(row) for row in rows(plan, folder, commit)]
            file.write_table(pa.Table.from_pylist(table, schema=schema))
            count += len(table)
    return count


_COLUMNS: Mapping[str, str] = {
    "run": "string",
    "step": "int64",
    "group": "int64",
    "member": "int64",
    "refill": "int64",
    "task": "string",
    "task_seed": "uint64",
    "policy": "string",
    "policy_step": "int64",
    "outcome": "string",
    "stop": "string",
    "reward": "float64",
    "advantage": "float64",
    "failure": "string",
    "tokens": "list int32",
    "mask": "list int8",
    "logprobs": "list float32",
    "advantages": "list float32",
    "opening": "string",
    "turns": "string",
}


def _column(pa: Any, kind: str) -> Any:
    name = kind.removeprefix("list ")
    inner = getattr(pa, name)()
    return pa.list_(inner) if name != kind else inner


def _flat(row: Row) -> Row:
    return {**row, "opening": json.dumps(row["opening"]), "turns": json.dumps(row["turns"])}


_WRITERS: Mapping[str, Callable[[TrainingPlan, Path, Sequence[Commit], Path], int]] = {
    "jsonl": _jsonl,
    "parquet": _parquet,
    "tinker": _tinker,
}
