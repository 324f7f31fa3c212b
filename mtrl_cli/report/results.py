"""The tables of results: settings with their mean over the seeds, runs, and evaluations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mtrl_cli.display import lines
from mtrl_cli.report.charts import wall
from mtrl_cli.report.facts import RunFacts
from mtrl_cli.report.html import table
from mtrl_cli.report.naming import Setting, differing, names, told_apart
from mtrl_cli.report.units import duration, interval, share, with_error
from mtrl_cli.training.evaluation.statistics import mean_of

_HEADS = ("reward before", "reward after", "gain", "passed before", "passed after")


def by_setting(settings: Sequence[Setting]) -> str:
    """Before and after training, the mean of each setting's runs; nothing where each setting has
    one run."""
    if all(len(setting.runs) == 1 for setting in settings):
        return ""
    rows = [
        (setting.name or "all runs", setting.count.replace(" ", "\u00a0"), *over_runs(setting.runs))
        for setting in settings
    ]
    return table(("setting", "runs", *_HEADS), rows, range(2, 2 + len(_HEADS)))


def over_runs(runs: Sequence[RunFacts]) -> tuple[str, ...]:
    """Reward before, after and gained, and the share passed before and after: means over the runs
    ± one standard error over them, or the one value that all have: that says nothing of an error.
    A mean of fewer than all of the runs says so."""

    def of(label: str, value: Callable[[Mapping[str, Any]], float | None]) -> list[float]:
        held = (run.evaluation(label) for run in runs)
        return [y for found in held if found is not None and (y := value(found)) is not None]

    def told(values: Sequence[float], show: Callable[..., str]) -> str:
        if not values:
            return "–"
        mean = mean_of(values)
        alike = len(values) > 1 and len(set(values)) == 1
        few = f" (n = {mean.count})" if mean.count != len(runs) else ""
        return (f"{show(values[0], None)} in all" if alike else show(mean.value, mean.se)) + few

    def left_out(label: str) -> str:
        failed = sum(of(label, lambda found: float(found.get("failed") or 0)))
        return _failed({"failed": int(failed)}).replace(" (", "\n(", 1)

    def signed(value: float, se: float | None) -> str:
        return with_error(value, se, sign=True)

    return (
        told(of("before", lambda found: float(found["mean"])), with_error) + left_out("before"),
        told(of("after", lambda found: float(found["mean"])), with_error) + left_out("after"),
        told(of("after", _gain), signed),
        told(of("before", passed), share),
        told(of("after", passed), share),
    )


def _gain(found: Mapping[str, Any]) -> float | None:
    versus = found.get("versus")
    return float(versus["mean"]) if versus else None


def passed(found: Mapping[str, Any]) -> float:
    """The share of an evaluation's games that were passed."""
    return float(found.get("passed", 0)) / int(found["games"])


def games_of(found: Mapping[str, Any]) -> str:
    """The games of an evaluation's figures, and those that failed and are left out."""
    return f"{found['games']:,} games{_failed(found)}"


def _failed(found: Mapping[str, Any]) -> str:
    return f" ({found['failed']:,} failed)" if found.get("failed") else ""


def by_run(runs: Sequence[RunFacts]) -> str:
    """The runs side by side; nothing for a single one."""
    rows = []
    for name, run in zip(names(runs), runs, strict=True):
        before, after = run.evaluation("before"), run.evaluation("after")
        versus = (after or {}).get("versus")
        rows.append(
            (
                name if name == run.id else f"{name}\n{run.id}",
                run.record.status,
                run.state.get("step", 0),
                _mean(before),
                _mean(after),
                with_error(versus["mean"], versus.get("se"), sign=True) if versus else "–",
                _episodes(run),
                f"{run.total('tokens_sampled'):,.0f}",
                duration(sum(wall(line) for line in run.steps)),
            )
        )
    heads = ("run", "status", "steps", "before", "after", "gain", "episodes", "tokens", "time")
    return table(heads, rows, range(2, 9)) if len(runs) > 1 else ""


def _mean(found: Mapping[str, Any] | None) -> str:
    """An evaluation's mean reward, and below it the games that failed."""
    if found is None:
        return "–"
    return with_error(found["mean"], found.get("se")) + _failed(found).replace(" (", "\n(", 1)


def _episodes(run: RunFacts) -> str:
    """The episodes of the steps, and below them those that failed."""
    failed = {"failed": int(run.total("failed_episodes"))}
    return f"{run.total('episodes'):,.0f}" + _failed(failed).replace(" (", "\n(", 1)


def evaluations(runs: Sequence[RunFacts]) -> str:
    """Every evaluation of the runs, those during training last."""
    named = names(runs)
    whose = [f"{name}: " if len(runs) > 1 else "" for name in named]
    rows = [
        _evaluation(name + label, found)
        for name, run in zip(whose, runs, strict=True)
        for label, found in held_by(run)
    ]
    rows += [
        _during(name, line)
        for name, run in zip(whose, runs, strict=True)
        for line in run.evaluations
    ]
    heads = (
        "evaluation",
        "games",
        "reward (95 %)",
        "passed",
        "unfinished",
        "invalid calls",
        "gain, same games (95 %)",
        "better / equal / worse",
    )
    return table(heads, rows, range(1, 8)) if rows else ""


def left_out(runs: Sequence[RunFacts]) -> str | None:
    """What to say beside the evaluations' figures where many games failed."""
    whose = [f"{name}: " if len(runs) > 1 else "" for name in names(runs)]
    return lines.left_out(
        [
            (name + label, int(found.get("failed", 0)), int(found["games"]))
            for name, run in zip(whose, runs, strict=True)
            for label, found in held_by(run)
            if len(runs) == 1 or found.get("failed")
        ]
    )


def held_by(run: RunFacts) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The evaluations of a run, by their moment; those of ``mtrl eval`` by their policy."""
    for label in ("before", "after"):
        if (found := run.evaluation(label)) is not None:
            yield label, found
    held = [run.evaluation(label) for label in ("rival", "eval")]
    named = told_apart([str(found.get("policy", "?")) for found in held if found is not None])
    for found, name in zip(filter(None, held), named.values(), strict=True):
        yield name, found


def _evaluation(label: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    games, versus = found["games"], found.get("versus")
    gain, contest = "–", "–"
    if versus:
        gain = with_error(versus["mean"], versus.get("se"), sign=True)
        gain += interval(versus.get("interval"))
        contest = f"{versus['wins']:,} / {versus['ties']:,} / {versus['losses']:,}"
    return (
        label,
        f"{games:,}{_failed(found)}",
        with_error(found["mean"], found.get("se")) + interval(found.get("interval")),
        f"{found.get('passed', 0) / games:.1%}",
        f"{found.get('unfinished', 0):,}",
        f"{found.get('invalid_call_share', 0):.1%}",
        gain,
        contest,
    )


def _during(whose: str, line: Mapping[str, Any]) -> tuple[str, ...]:
    """An evaluation during training: what metrics.jsonl has of it."""
    gain = "–"
    if "eval/gain" in line:
        gain = with_error(line["eval/gain"], line.get("eval/gain_se"), sign=True)
    label, games = f"{whose}step {line['step']}", "–"
    if "eval/games" in line:
        failed = {"failed": int(line.get("eval/failed", 0))}
        games = f"{int(line['eval/games']):,}{_failed(failed)}"
    mean = with_error(line["eval/mean"], line.get("eval/se"))
    passed = f"{line['eval/pass_rate']:.1%}" if "eval/pass_rate" in line else "–"
    return (label, games, mean, passed, "–", "–", gain, "–")


def differences(runs: Sequence[RunFacts]) -> str:
    """The settings in which the runs differ; nothing where there are none."""
    rows = [(key, *(run.settings.get(key, "–") for run in runs)) for key in differing(runs)]
    return table(("key", *(run.id for run in runs)), rows) if rows else ""
