"""What a run says at its end: what it reached, what it cost, where it is, what to do next."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from mtrl_cli.display.lines import Redact, counted, games_of, interval, left_out, with_error
from mtrl_cli.display.state import RunState
from mtrl_cli.display.text import (
    clock,
    compact,
    gap,
    harmless,
    policy_name,
    reward,
    run_dir_override,
    run_tail,
    table,
)
from mtrl_cli.display.views import GroupView
from mtrl_cli.display.words import outcome, outcomes, reasons
from mtrl_cli.display.wrapping import LABEL, Fact, glued, laid_out, wrapped
from mtrl_cli.training.events import (
    EQUAL_REWARDS,
    Comparison,
    Evaluated,
    Resumable,
    RunFailed,
    RunFinished,
)

LAST_STEPS = 10
"""Steps whose mean reward is told where nothing was evaluated, and of the runs of a sweep."""


def summary(
    state: RunState,
    now: float,
    play: str | None = None,
    *,
    width: int | None = None,
    redact: Redact = str,
) -> list[str]:
    """The lines of the end.

    Args:
        play: the command that plays this experiment, if not the run folder's own configuration.
        width: of the terminal; prose that is longer is broken.
        redact: takes secrets out, before a break could hide one.
    """
    finished = state.finished
    if finished is None:
        return []
    lines = wrapped(redact(_headline(state, finished, now)), width, LABEL)
    if state.plan.keep_groups:
        lines += _played(state.finished_groups, width, redact)
    return [*lines, *laid_out(_facts(state, finished, play), width, redact)]


def _played(groups: list[GroupView], available: int | None, redact: Redact) -> list[str]:
    """A table of played groups: the rewards of their members, and why they ended."""
    if not groups:
        return []
    rows = [[f"{'group':>5}", "task", f"{'mean':>6}", f"{'tokens':>7}", "rewards and ends"]]
    for group in sorted(groups, key=lambda one: one.group):
        rewards = group.rewards
        mean = reward(sum(rewards) / len(rewards) if rewards else None)
        members = "  ".join(
            glued(f"{reward(member.reward, 2):>5} {harmless(member.stop)}")
            for _, member in sorted(group.members.items())
        )
        if group.outcome not in (None, "complete"):
            members = f"{members}  [{harmless(outcome(group.outcome or ''))}]".strip()
        task = redact(harmless(group.task))
        rows.append(
            [f"{group.group:>5}", task, f"{mean:>6}", f"{group.tokens:>7,}", redact(members)]
        )
    lines = ["", *table(rows, available, cut=[1])]
    every = [value for group in groups for value in group.rewards]
    if every:
        played = f"{counted(len(every), 'episode')} of {counted(len(groups), 'task sample')}"
        told = (
            f"mean reward {sum(every) / len(every):.3f} over {played}; mtrl eval tells a policy's"
            " over many, with its error"
        )
        lines += wrapped(told, available)
    return [*lines, ""]


def _headline(state: RunState, finished: RunFinished, now: float) -> str:
    experiment = harmless(state.run.experiment if state.run else state.plan.title)
    took = clock(now - state.started if finished.seconds is None else finished.seconds)
    steps = f", {finished.steps} of {state.steps} steps" if state.steps else ""
    reason = f": {harmless(finished.reason)}" if finished.reason else ""
    attempt = f" of attempt {state.attempt}" if state.attempt > 1 else ""
    return f"{harmless(finished.status)}: {experiment}{steps} in {took}{attempt}{reason}"


def _facts(state: RunState, finished: RunFinished, play: str | None) -> Iterator[Fact]:
    if finished.evaluated is not None:
        yield from _evaluated(finished.evaluated, finished.before)
        yield from _known(state)
    else:
        yield from _reward(state, finished.before, finished.after)
    attempts = f" in {state.attempt} attempts" if state.attempt > 1 else ""
    yield Fact("episodes", f"{finished.episodes:,}{attempts}, {_tokens(state, finished)}")
    if (cut := state.cut_off) is not None:
        games = f"{cut.done:,} of {counted(cut.games, 'game')}"
        yield Fact("", f"the evaluation was cut off after {games}")
    if finished.failed:
        every = finished.failed + finished.episodes
        number = f"{finished.failed:,} of {counted(every, 'episode')}"
        number += f" ({finished.failed / every:.1%})"
        where = harmless(f"mtrl trajectory {_run_at(finished.folder)}")
        yield Fact("failed", f"{number}, played again or left out; named by:")
        yield Fact("", where, copied=True)
    if finished.skipped:
        total = sum(finished.skipped.values())
        yield Fact("groups", f"{total:,} gave no advantage: {outcomes(finished.skipped)}")
    if state.metrics and finished.policy and finished.policy == state.first_policy:
        alike = " (no group's rewards differed)" if set(finished.skipped) == {EQUAL_REWARDS} else ""
        yield Fact("NOTE", f"nothing was trained{alike}: the policy is unchanged")
    if state.audits:
        yield Fact("audit", _audits(state))
    if finished.folder:
        yield Fact("run", harmless(finished.folder), copied=True)
    if finished.policy:
        yield Fact("policy", harmless(finished.policy), copied=True)
        if finished.steps and not state.plan.keep_groups:
            yield Fact("play it", _playing(finished.folder, play), copied=True)
    if finished.resumable is not None:
        yield from going_on(finished.resumable, finished.folder)
    if finished.folder and (finished.steps or finished.evaluated) and not state.plan.keep_groups:
        command = f"mtrl report {_run_at(finished.folder)}"
        yield Fact("report", harmless(command), copied=True)
    whole = [one for one in state.finished_groups if one.outcome == "complete" and one.members]
    if state.plan.readable and finished.folder and whole:
        yield Fact("read it", _reading(finished.folder, whole), copied=True)
    yield from _quarantine(finished.quarantined)


def _tokens(state: RunState, finished: RunFinished) -> str:
    """Those of the steps' episodes, and all that the screen has counted while it ran, which is
    what a server bills; of earlier attempts that is not known."""
    told = f"{compact(finished.sampled_tokens)} tokens sampled"
    evaluated = finished.before is not None or finished.after is not None
    if state.attempt == 1 and evaluated and state.tokens > finished.sampled_tokens:
        told += f" ({compact(state.tokens)} with evaluations)"
    return told


def failure(failed: RunFailed) -> list[Fact]:
    """What a failed run leaves, below its error: labels and texts."""
    told = [Fact("run", harmless(failed.folder), copied=True)]
    if failed.resumable is not None:
        told += going_on(failed.resumable, failed.folder)
    return [*told, *_quarantine(failed.quarantined)]


def going_on(resumable: Resumable, folder: str) -> list[Fact]:
    """What stands of a run, and how to go on with it."""
    resume = harmless(f"mtrl train --resume {_run_at(folder)}")
    kept = Fact("kept", _kept(resumable))
    if not resumable.unstepped:
        return [kept, Fact("resume", resume, copied=True)]
    models = ", ".join(map(harmless, resumable.unstepped))
    told = f"gradients of {models} were not stepped: start the server again, then:"
    return [kept, Fact("first", told), Fact("resume", f"{resume} --force", copied=True)]


def _kept(resumable: Resumable) -> str:
    """What stands of a run, and where a resume begins."""
    committed, begins = resumable.committed, resumable.begins
    stands = f"step {committed} is committed" if committed else "no step is committed"
    if begins < 0:
        return f"{stands}; no training state was saved, so a resume begins anew"
    if begins == committed:
        return f"{stands}, with its training state"
    return f"{stands}; a resume begins at step {begins}, the last one with a training state"


def _run_at(folder: str) -> str:
    """A run as a command is to find it."""
    return f"{_named(folder)}{_runs_dir(folder)}"


def _named(folder: str) -> str:
    return shlex.quote(run_tail(Path(folder).name))


def _runs_dir(folder: str) -> str:
    parent = Path(folder).parent
    return "" if parent == Path("runs") else f" --runs-dir {shlex.quote(str(parent))}"


def _reading(folder: str, groups: Sequence[GroupView]) -> str:
    """The command that shows the first one of the trajectories that were played."""
    first = min(groups, key=lambda one: one.group)
    which = f"{first.group}/{min(first.members)}"
    return harmless(f"mtrl trajectory {_named(folder)} {which}{_runs_dir(folder)}")


def _playing(folder: str, play: str | None) -> str:
    """The command that plays what a run has trained, and shows a game of it."""
    path = Path(folder)
    own = folder if "/" in folder else f"./{folder}"  # a path, not an experiment's name
    command = play or f"mtrl rollout conf={shlex.quote(own)}"
    if play is None and path.parent != Path("runs"):  # where the folder is now, names are found
        command += f" {run_dir_override(str(path.parent))}"
    return harmless(f"{command} policy={_named(folder)}@last --show 1")


def _quarantine(left: Sequence[str]) -> Iterator[Fact]:
    if left:
        yield Fact("QUARANTINE", f"{len(left)} could not be returned and may still live:")
        yield from (Fact("", harmless(name), copied=True) for name in left)


def _audits(state: RunState) -> str:
    audits = state.audits
    most = max(value for value, _ in audits)
    mean = sum(value for _, value in audits) / len(audits)
    steps = "1 step" if len(audits) == 1 else f"{len(audits):,} steps"
    # Those of earlier attempts were told by them; `mtrl show` has read them all.
    of = " of this attempt" if state.run is not None and state.run.step else ""
    return (
        f"sampler and trainer differ by {gap(most)} at most, {gap(mean)} in the mean of {steps}{of}"
    )


def _reward(state: RunState, before: Evaluated | None, after: Evaluated | None) -> Iterator[Fact]:
    """Reward before and after, beside what known policies reach."""
    if before is None and after is None:
        if last := state.rewards[-LAST_STEPS:]:
            mean = reward(sum(last) / len(last))
            steps = "the last step" if len(last) == 1 else f"the last {len(last)} steps"
            yield Fact("reward", f"{mean} over {steps}; nothing was evaluated")
        return
    held = [(label, it) for label, it in (("before", before), ("after", after)) if it is not None]
    told = [
        f"{label} {with_error(it.mean, it.se)}" + (f" ({it.failed:,} failed)" if it.failed else "")
        for label, it in held
    ]
    paired = after.versus if after is not None else None
    gain = ""
    if before is not None and after is not None and paired is None:
        gain = f" ({after.mean - before.mean:+z.3f})"
    games = [f"{count:,}" for count in dict.fromkeys(it.games for _, it in held)]
    each = " games each" if len(games) == 1 else " games"
    yield Fact(
        "reward", f"{' → '.join(told)}{gain} (± standard error, {' and '.join(games)}{each})"
    )
    if paired is not None:
        yield Fact("paired", _paired(paired))
    yield from _left_out(held)
    yield from _known(state)
    shares = [f"{result.invalid_call_share:.1%}" for result in (before, after) if result]
    yield Fact("", f"invalid tool calls {' → '.join(shares)}")


def _known(state: RunState) -> Iterator[Fact]:
    """What known policies reach."""
    if state.run is not None and state.run.references:
        known = sorted(state.run.references.items(), key=lambda item: item[1])
        yield Fact(
            "", "known: " + ", ".join(f"{harmless(name)} {value:.3f}" for name, value in known)
        )


def _evaluated(result: Evaluated, rival: Evaluated | None) -> Iterator[Fact]:
    """One policy's figures, and what it is worth against another one."""
    heat = "greedy" if result.temperature == 0 else f"temperature {result.temperature:g}"
    mean = with_error(result.mean, result.se) + interval(result.interval)
    yield Fact("reward", f"{mean}, {games_of(result)}, {heat}")
    low, high = result.pass_interval or (0.0, 1.0)
    share = result.passed / result.games
    yield Fact("passed", f"{share:.1%} (95 % {low:.1%} to {high:.1%})")
    yield Fact(
        "ended", f"{reasons(result.stops)}; unfinished {result.unfinished / result.games:.1%}"
    )
    yield Fact("", f"invalid tool calls {result.invalid_call_share:.1%}")
    if result.failed:
        yield Fact("", f"{result.failed:,} games left out: they failed, after their refills")
    both = [("", result)]
    if rival is not None:
        name = harmless(policy_name(rival.policy))
        yield Fact("against", f"{name}: {with_error(rival.mean, rival.se)}, {games_of(rival)}")
        both = [(harmless(policy_name(result.policy)), result), (name, rival)]
    if result.versus is not None:
        yield Fact("paired", _paired(result.versus))
    yield from _left_out(both)


def _left_out(played: Sequence[tuple[str, Evaluated]]) -> Iterator[Fact]:
    """What the figures above do not hold."""
    told = left_out([(name, one.failed, one.games) for name, one in played])
    if told is not None:
        yield Fact("NOTE", told)


def _paired(versus: Comparison) -> str:
    """Game by game: the mean difference, and how often it was better."""
    gain = with_error(versus.mean, versus.se, "+") + interval(versus.interval, "+")
    tally = f"{versus.wins:,} better, {versus.ties:,} equal, {versus.losses:,} worse"
    left = f", {versus.left_out:,} left out" if versus.left_out else ""
    return f"{gain}; of {versus.pairs:,} games {tally}{left}"
