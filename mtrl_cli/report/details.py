"""What a report tells of each run by itself: where its time went, trajectories, groups, ledger."""

import json
import time
from collections.abc import Callable
from typing import Any

from mtrl_cli.display.words import because, outcome
from mtrl_cli.report import words
from mtrl_cli.report.episodes import Chosen, Sample
from mtrl_cli.report.facts import RunFacts
from mtrl_cli.report.html import bars, section, table, text
from mtrl_cli.report.played import trains
from mtrl_cli.report.svg import number
from mtrl_cli.report.times import episode_shares, wall_shares
from mtrl_cli.report.units import duration

_BROWSER = """<div class="browser">
<noscript><p>The browser of trajectories needs JavaScript.</p></noscript>
<script type="application/json">DATA</script>
<div class="needs-script" hidden><div class="pick">
<label>Step <select name="step"></select></label>
<label>Order <select name="order"><option value="group">group</option>
<option value="best">best first</option><option value="worst">worst first</option></select></label>
<span class="soft"><span class="what">group/member</span> and reward; arrow keys go from one to the
next</span></div>
<div class="list" role="group" aria-label="episodes"></div>
<div class="episode"></div></div></div>"""


def first(run: RunFacts, chosen: Chosen) -> str:
    """Time and trajectories, which one asks for first."""
    sample, note = chosen.sample, chosen.note
    told = f'<p class="soft">{text(note)}</p>' if note else ""
    shown = "" if sample is None else _sampled(run, sample)
    return section("Time", "", _times(run) if run.steps else "") + section(
        "Trajectories", shown, _browser(sample), told
    )


def _sampled(run: RunFacts, sample: Sample) -> str:
    if not sample.games:
        return words.TRAJECTORIES if trains(run) else words.EPISODES
    count = len({episode["group"] for episode in sample.episodes})
    games = "1 game" if count == 1 else f"{count} games"
    one, *others = dict.fromkeys(str(episode["policy"]) for episode in sample.episodes)
    return (words.PAIRS if others else words.GAMES).format(
        games=games, one=one, other=others[0] if others else ""
    )


def last(run: RunFacts) -> str:
    """What became of groups, attempts, calls and borrows; every figure and setting."""
    return "".join(
        [
            section("Groups", words.GROUPS, _groups(run)),
            section("Attempts", "", _attempts(run)),
            section("Ledger", words.LEDGER, _ledger(run)),
            section("Every step", "", _steps(run)),
            section("Settings", "", _settings(run)),
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
    kl = run.settings.get("train.kl") not in ("0", "0.0")
    rows = [
        (outcome(how), n, (f"{n:,}", f"{n / whole:.0%}"), because(how, kl=kl)) for how, n in ordered
    ]
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


def _browser(sample: Sample | None) -> str:
    if sample is None:
        return ""
    shown = {"words": sample.words, "episodes": sample.episodes, "games": sample.games}
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
