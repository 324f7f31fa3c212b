"""The page: one HTML document that needs nothing but itself.

Styles and the script are inlined from the files beside this module; charts are SVG. All figures
stand in the page without the script, which only drives the browser of trajectories. A content
security policy forbids every connection.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mtrl_cli import __version__
from mtrl_cli.report import details, results, words
from mtrl_cli.report.charts import panels, wall
from mtrl_cli.report.episodes import Chosen
from mtrl_cli.report.facts import RunFacts
from mtrl_cli.report.html import folded, legend, section, text
from mtrl_cli.report.learning import learning_curve
from mtrl_cli.report.naming import Setting, settings, told_apart
from mtrl_cli.report.played import evaluates, played, trains
from mtrl_cli.report.svg import draw, swatch
from mtrl_cli.report.units import duration, share, with_error

_HERE = Path(__file__).parent
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(runs: Sequence[RunFacts], chosen: Sequence[Chosen]) -> str:
    """The report of one run, or of several over each other.

    Args:
        chosen: the trajectories of each run to show.
    """
    title = f"{_heading(runs[0])} {runs[0].id}"
    if len(runs) > 1:
        title = f"{len(runs)} runs: " + ", ".join(run.id for run in runs)
    body = "".join(_one(runs[0], chosen[0]) if len(runs) == 1 else _several(runs, chosen))
    style = (_HERE / "style.css").read_text(encoding="utf-8")
    script = (_HERE / "script.js").read_text(encoding="utf-8")
    made = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(title)}</title><style>{style}</style></head><body><main>{body}"
        f"<footer>mtrl {text(__version__)}, {made}. From the run's folder alone.</footer>"
        f"</main><script>{script}</script></body></html>\n"
    )


def _one(run: RunFacts, chosen: Chosen) -> Iterator[str]:
    state = run.state
    told = [run.id, run.record.status, _begun(run)]
    if state.get("reason"):
        told.append(str(state["reason"]))
    told += _trained_with(run)
    keys = _keys(run) if trains(run) else _keys_of_played(run)
    yield _head(_heading(run), told, keys)
    yield _left_out([run])
    yield _lacking([run], [chosen])
    alone = settings([run])
    yield _learning(alone)
    yield section("Evaluations", "", results.evaluations([run]))
    yield details.first(run, chosen)
    yield _over_the_steps(alone)
    yield details.last(run)


def _heading(run: RunFacts) -> str:
    """What is played, and of a run that trains nothing what it does with which policy."""
    experiment = str(run.state.get("experiment", "?"))
    if trains(run):
        return experiment
    if not evaluates(run):
        return f"Rollout, {experiment}"
    held = (run.evaluation(label) for label in ("eval", "rival"))
    policies = [str(found.get("policy", "?")) for found in held if found is not None]
    if not policies and (begun := run.state.get("policy")):
        policies = [str(begun)]
    of = f" of {' against '.join(told_apart(policies).values())}" if policies else ""
    return f"Evaluation{of}, {experiment}"


def _several(runs: Sequence[RunFacts], chosen: Sequence[Chosen]) -> Iterator[str]:
    grouped = settings(runs)
    experiments = ", ".join(dict.fromkeys(str(run.state.get("experiment")) for run in runs))
    settings_told = f"{len(runs)} runs of {len(grouped)} settings"
    if len(grouped) == 1:
        settings_told = f"{grouped[0].count}, all other settings equal"
    alike = set.intersection(*(set(_trained_with(run)) for run in runs))
    told = [settings_told, _begun(min(runs, key=_created))]
    told += [one for one in _trained_with(runs[0]) if one in alike]
    yield _head(f"{experiments}: {len(runs)} runs", told, ())
    yield _left_out(runs)
    yield _lacking(runs, chosen)
    yield section("Results", words.BY_SETTING, results.by_setting(grouped))
    yield _learning(grouped)
    table = results.evaluations(runs)
    yield section("Runs", words.BY_RUN, results.by_run(runs), folded("Every evaluation", table))
    yield _over_the_steps(grouped)
    shown = {run.id: one for run, one in zip(runs, chosen, strict=True)}
    yield section("Each run", "", *_each(grouped, shown))
    yield section("Settings that differ", "", results.differences(runs))


def _each(grouped: Sequence[Setting], chosen: Mapping[str, Chosen]) -> Iterator[str]:
    for setting in grouped:
        for name, run in zip(setting.named, setting.runs, strict=True):
            shown = name if name == run.id else f"{name} · {run.id}"
            yield folded(shown, details.first(run, chosen[run.id]) + details.last(run))


def lacking(run: RunFacts, chosen: Chosen) -> list[str]:
    """What the report of a run lacks because its files are damaged, a sentence each."""
    return [*run.missing, *chosen.lost]


def _lacking(runs: Sequence[RunFacts], chosen: Sequence[Chosen]) -> str:
    told = (line for run, one in zip(runs, chosen, strict=True) for line in lacking(run, one))
    return "".join(f'<p class="warn">{text(line)}</p>' for line in told)


def _left_out(runs: Sequence[RunFacts]) -> str:
    told = results.left_out(runs)
    return "" if told is None else f'<p class="warn">{text(told)}</p>'


def _created(run: RunFacts) -> float:
    return float(run.state.get("created") or 0)


def _begun(run: RunFacts) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(_created(run)))


def _head(heading: str, told: Sequence[str], keys: Iterable[tuple[str, str]]) -> str:
    shown = "".join(
        f"<div><b>{_small_error(value)}</b><span>{text(name)}</span></div>" for name, value in keys
    )
    below = f'<div class="keys">{shown}</div>' if shown else ""
    facts = " ".join(f"<span>{text(fact)}</span>" for fact in told)
    return f'<h1>{text(heading)}</h1><p class="facts soft mono">{facts}</p>{below}'


def _small_error(value: str) -> str:
    figure, plus_minus, error = value.partition(" ± ")
    return text(figure) + (f" <small>± {text(error)}</small>" if plus_minus else "")


def _trained_with(run: RunFacts) -> Iterator[str]:
    """Model and task (where the experiment is not called like it), and what a run that trains does
    in a step; as far as that is known."""
    known = run.settings
    named = (known[key] for key in ("server.base_model", "task.name") if key in known)
    yield from (name for name in named if name != run.state.get("experiment"))
    if trains(run) and known:
        yield f"learning rate {known['train.learning_rate']}"
        yield f"{known['group.per_step']} groups × {known['group.size']} a step"


def _keys(run: RunFacts) -> Iterator[tuple[str, str]]:
    """The figures that one asks for first."""
    for label in ("before", "after"):
        if (found := run.evaluation(label)) is not None:
            games = results.games_of(found)
            yield f"reward {label} training, {games}", with_error(found["mean"], found.get("se"))
    held = [found for label in ("before", "after") if (found := run.evaluation(label)) is not None]
    after = run.evaluation("after")
    if after is not None and (versus := after.get("versus")):
        gain = with_error(versus["mean"], versus.get("se"), sign=True)
        yield f"gain on the same {versus['pairs']:,} games", gain
    passed = [share(results.passed(found)) for found in held]
    if passed:
        yield "passed" + (" before and after" if len(passed) == 2 else ""), " → ".join(passed)
    planned = run.state.get("steps")
    yield "steps", f"{run.state.get('step', 0)}" + (f" of {planned}" if planned else "")
    yield "episodes", f"{run.total('episodes'):,.0f}"
    yield "tokens sampled", f"{run.total('tokens_sampled'):,.0f}"
    seconds = sum(wall(line) for line in run.steps)
    if seconds:
        yield "wall time of the steps", duration(seconds)


def _keys_of_played(run: RunFacts) -> Iterator[tuple[str, str]]:
    """Those of a run that trains nothing."""
    found, evaluated = played(run), run.evaluation("eval")
    if evaluated is not None:
        name = f"mean reward, {results.games_of(evaluated)}"
        yield name, with_error(evaluated["mean"], evaluated.get("se"))
        yield "passed", share(results.passed(evaluated))
    elif found.reward is not None:
        yield "mean reward", with_error(found.reward.value, found.reward.se)
    yield "episodes", f"{found.reward.count if found.reward else 0:,}"
    if found.failed:
        yield "failed attempts", f"{found.failed:,}"
    yield "tokens sampled", f"{found.tokens:,}"


def _learning(settings: Sequence[Setting]) -> str:
    figure = learning_curve(settings)
    names = [
        f"{setting.name} ({setting.count})" if len(setting.runs) > 1 else setting.name
        for setting in settings
    ]
    keys = [(swatch(number), name) for number, name in enumerate(names)]
    drawn = draw(figure.chart)
    return section("Learning", figure.note, legend(keys), drawn) if drawn else ""


def _over_the_steps(settings: Sequence[Setting]) -> str:
    shown, same = panels(settings)
    small = "".join(
        f"<figure><h3>{text(panel.heading)}</h3><figcaption>{text(panel.note)}</figcaption>"
        f"{draw(panel.chart)}</figure>"
        for panel in shown
    )
    told = f"The same in every step, and not drawn: {'; '.join(same)}." if same else ""
    drawn = f'<div class="small">{small}</div>' if small else ""
    return section("Over the steps", told, drawn)
