"""The page: one HTML document that needs nothing but itself.

Styles and the script are inlined from the files beside this module; charts are SVG. All figures
stand in the page without the script, which only drives the browser of trajectories. A content
security policy forbids every connection.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtrl_cli import __version__
from mtrl_cli.display.text import policy_name
from mtrl_cli.display.words import because, outcome
from mtrl_cli.report import words
from mtrl_cli.report.charts import learning_curve, panels, wall
from mtrl_cli.report.episodes import chosen_episodes
from mtrl_cli.report.facts import RunFacts
from mtrl_cli.report.html import bars, legend, section, table, text
from mtrl_cli.report.naming import differing, names
from mtrl_cli.report.svg import draw, number
from mtrl_cli.report.times import episode_shares, wall_shares

_HERE = Path(__file__).parent
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


_BROWSER = """<div class="browser">
<noscript><p>The browser of trajectories needs JavaScript.</p></noscript>
<script type="application/json">DATA</script>
<div class="needs-script" hidden><div class="pick">
<label>Step <select name="step"></select></label>
<label>Order <select name="order"><option value="group">group</option>
<option value="best">best first</option><option value="worst">worst first</option></select></label>
<span class="soft">group/member and reward</span></div>
<div class="list"></div><div class="episode"></div></div></div>"""


def page(runs: Sequence[RunFacts]) -> str:
    """The report of one run, or of several over each other."""
    title = f"{runs[0].state.get('experiment', '?')} {runs[0].id}"
    if len(runs) > 1:
        title = f"{len(runs)} runs: " + ", ".join(run.id for run in runs)
    named = names(runs)
    details = (
        _details(run, name if len(runs) > 1 else "") for name, run in zip(named, runs, strict=True)
    )
    body = "".join([_head(runs), *_figures(runs, named), *details])
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


def _head(runs: Sequence[RunFacts]) -> str:
    if len(runs) > 1:
        names = ", ".join(dict.fromkeys(str(run.state.get("experiment")) for run in runs))
        return f"<h1>{text(names)}: {len(runs)} runs</h1>"
    (run,) = runs
    state = run.state
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(state.get("created") or 0))
    told = f"{run.id} · {run.record.status} · {begun}"
    if state.get("reason"):
        told += f" · {state['reason']}"
    keys = "".join(
        f"<div><b>{_small_error(value)}</b><span>{text(name)}</span></div>"
        for name, value in _keys(run)
    )
    return (
        f"<h1>{text(state.get('experiment', '?'))}</h1>"
        f'<p class="soft mono">{text(told)}</p><div class="keys">{keys}</div>'
    )


def _small_error(value: str) -> str:
    figure, plus_minus, error = value.partition(" ± ")
    return text(figure) + (f" <small>± {text(error)}</small>" if plus_minus else "")


def _keys(run: RunFacts) -> Iterator[tuple[str, str]]:
    """The figures that one asks for first."""
    for label in ("before", "after"):
        if (found := run.evaluation(label)) is not None:
            games = f"{found['games']:,} games"
            yield f"reward {label} training, {games}", with_error(found["mean"], found.get("se"))
    after = run.evaluation("after")
    if after is not None and (versus := after.get("versus")):
        gain = with_error(versus["mean"], versus.get("se"), sign=True)
        yield f"gain on the same {versus['pairs']:,} games", gain
    planned = run.state.get("steps")
    yield "steps", f"{run.state.get('step', 0)}" + (f" of {planned}" if planned else "")
    yield "episodes", f"{run.total('episodes'):,.0f}"
    yield "tokens sampled", f"{run.total('tokens_sampled'):,.0f}"
    seconds = sum(wall(line) for line in run.steps)
    if seconds:
        yield "wall time of the steps", duration(seconds)


def _figures(runs: Sequence[RunFacts], named: Sequence[str]) -> Iterator[str]:
    yield section("Learning", words.LEARNING, legend(named), draw(learning_curve(runs, named)))
    yield section("Results", "", _results(runs, named), _evaluations(runs, named))
    yield section("Settings that differ", "", _differences(runs))
    shown, same = panels(runs, named)
    small = "".join(
        f"<figure><h3>{text(panel.heading)}</h3><figcaption>{text(panel.note)}</figcaption>"
        f"{draw(panel.chart)}</figure>"
        for panel in shown
    )
    told = f"The same in every step, and not drawn: {'; '.join(same)}." if same else ""
    drawn = f'<div class="small">{small}</div>' if small else ""
    yield section("Over the steps", told, drawn)


def _results(runs: Sequence[RunFacts], named: Sequence[str]) -> str:
    """The runs side by side; nothing for a single one."""
    rows = []
    for name, run in zip(named, runs, strict=True):
        before, after = run.evaluation("before"), run.evaluation("after")
        versus = (after or {}).get("versus")
        rows.append(
            (
                name if name == run.id else f"{name}\n{run.id}",
                run.record.status,
                run.state.get("step", 0),
                "–" if before is None else with_error(before["mean"], before.get("se")),
                "–" if after is None else with_error(after["mean"], after.get("se")),
                with_error(versus["mean"], versus.get("se"), sign=True) if versus else "–",
                f"{run.total('tokens_sampled'):,.0f}",
                duration(sum(wall(line) for line in run.steps)),
            )
        )
    heads = ("run", "status", "steps", "before", "after", "paired gain", "tokens", "time")
    return table(heads, rows, range(2, 8)) if len(runs) > 1 else ""


def _evaluations(runs: Sequence[RunFacts], named: Sequence[str]) -> str:
    whose = [f"{name}: " if len(runs) > 1 else "" for name in named]
    rows = [
        _evaluation(name + label, found)
        for name, run in zip(whose, runs, strict=True)
        for label, found in _held(run)
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


def _held(run: RunFacts) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The evaluations of a run, by their moment; those of ``mtrl eval`` by their policy."""
    for label in ("before", "after", "rival", "eval"):
        if (found := run.evaluation(label)) is not None:
            training = label in ("before", "after")
            yield label if training else policy_name(str(found["policy"])), found


def _evaluation(label: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    games, versus = found["games"], found.get("versus")
    gain, contest = "–", "–"
    if versus:
        gain = with_error(versus["mean"], versus.get("se"), sign=True)
        gain += interval(versus.get("interval"))
        contest = f"{versus['wins']} / {versus['ties']} / {versus['losses']}"
    return (
        label,
        f"{games:,}",
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
    label = f"{whose}step {line['step']}"
    mean = with_error(line["eval/mean"], line.get("eval/se"))
    passed = f"{line['eval/pass_rate']:.1%}" if "eval/pass_rate" in line else "–"
    return (label, "–", mean, passed, "–", "–", gain, "–")


def _differences(runs: Sequence[RunFacts]) -> str:
    rows = [(key, *(run.settings.get(key, "–") for run in runs)) for key in differing(runs)]
    return table(("key", *(run.id for run in runs)), rows) if rows else ""


def _details(run: RunFacts, name: str) -> str:
    """What is told of each run by itself."""
    name = f"{name}: " if name else ""
    shown, note = chosen_episodes(run)
    return "".join(
        [
            section(f"{name}Time", "", _times(run)),
            section(
                f"{name}Groups",
                words.GROUPS,
                _groups(run),
            ),
            section(
                f"{name}Ledger",
                words.LEDGER,
                _ledger(run),
            ),
            section(f"{name}Attempts", "", _attempts(run)),
            section(
                f"{name}Trajectories",
                words.TRAJECTORIES,
                _browser(shown),
                f'<p class="soft">{text(note)}</p>' if note else "",
            ),
            section(f"{name}Every step", "", _steps(run)),
            section(f"{name}Settings", "", _settings(run)),
        ]
    )


def _times(run: RunFacts) -> str:
    def told(shares: Any, show: Callable[[float], str]) -> str:
        whole = sum(share.seconds for share in shares) or 1.0
        return bars(
            [
                (s.name, s.seconds, (show(s.seconds), f"{s.seconds / whole:.0%}"), s.note)
                for s in shares
            ]
        )

    parts = []
    if shares := wall_shares(run):
        parts.append(f"<div><h3>The run</h3>{told(shares, duration)}</div>")
    if shares := episode_shares(run):
        heading = "<h3>An episode waits for</h3>"
        parts.append(f"<div>{heading}{told(shares, lambda s: f'{s * 1000:,.0f} ms')}</div>")
    return "".join(parts)


def _groups(run: RunFacts) -> str:
    whole = sum(run.outcomes.values())
    ordered = sorted(run.outcomes.items(), key=lambda item: (-item[1], item[0]))
    rows = [(outcome(how), n, (f"{n:,}", f"{n / whole:.0%}"), because(how)) for how, n in ordered]
    return bars(rows) if whole else ""


def _ledger(run: RunFacts) -> str:
    states = ("done", "refused", "unknown", "open")
    calls = [
        (call.kind, *(call.outcomes.get(state, 0) for state in states), duration(call.seconds))
        for call in run.calls
    ]
    kinds = [
        (kind, ", ".join(f"{count} {state}" for state, count in states.items()))
        for kind, states in run.borrows.items()
    ]
    parts = [
        table(("call", *states, "time"), calls, range(1, 6)) if calls else "",
        table(("borrow", "ended as"), kinds) if kinds else "",
    ]
    left = "".join(f'<p class="warn">{text(line)}</p>' for line in run.record.quarantined)
    return f'<div class="two">{"".join(parts)}</div>{left}' if any(parts) or left else ""


def _attempts(run: RunFacts) -> str:
    resumed = run.state.get("resumed") or ()
    rows = [
        (
            entry["attempt"],
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["time"])),
            "anew" if entry["step"] < 0 else f"step {entry['step']}",
        )
        for entry in resumed
    ]
    back = "".join(
        f"<p>Attempt {text(record['attempt'])} went back to step {text(record['to'])}; "
        "the commits after it are void.</p>"
        for record in run.rollbacks
    )
    return (table(("attempt", "begun", "from"), rows) if rows else "") + back


def _browser(shown: Sequence[Mapping[str, Any]]) -> str:
    if not shown:
        return ""
    # In a script element only "<" can end or open anything; JSON may write it as an escape.
    data = json.dumps(shown, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return _BROWSER.replace("DATA", data, 1)


def _steps(run: RunFacts) -> str:
    names = (
        "reward",
        "reward_se",
        "episodes",
        "groups_trained",
        "turns",
        "tokens_sampled",
        "entropy",
        "kl",
        "loss",
        "parity_max",
        "seconds_sampling",
        "seconds_training",
    )
    rows = [
        (line["step"], *(number(line[name]) if name in line else "–" for name in names))
        for line in run.steps
    ]
    body = table(("step", *names), rows, range(len(names) + 1))
    return (
        f"<details><summary>Figures of {len(rows)} steps</summary>{body}</details>" if rows else ""
    )


def _settings(run: RunFacts) -> str:
    rows = sorted(run.settings.items())
    body = table(("key", "value"), rows)
    return f"<details><summary>{len(rows)} settings</summary>{body}</details>" if rows else ""


def with_error(value: float, se: float | None, *, sign: bool = False) -> str:
    shown = f"{value:+z.3f}" if sign else f"{value:z.3f}"
    return shown.replace("-", "−") + ("" if se is None else f" ± {se:.3f}")


def interval(ends: Sequence[float] | None) -> str:
    """A 95 % interval on a line of its own; nothing where there is none."""
    return "" if not ends else f"\n({ends[0]:z.3f} to {ends[1]:z.3f})".replace("-", "−")


def duration(seconds: float) -> str:
    """A duration with its unit: 41.2 s, 12 min 30 s, 3 h 04 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, second = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {second:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
