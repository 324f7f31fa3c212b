"""The trajectory files: every line by itself, the lines of a group together, the file as a whole.

A file is tied to the durable commit of its step by the SHA-256 of its text; a line tells by its
own seal whether it is as it was written. The groups in the file are the ones that the step
consumed, each with one policy, one task sample and one opening, each member's attempts numbered
without a hole, and the outcome that was committed is the one that follows from them.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from mtrl_cli.runs.trajectories import seal_holds
from mtrl_cli.runs.verify.declared import Declared
from mtrl_cli.runs.verify.episodes import Episode, Malformed, Retelling, episode, flaws
from mtrl_cli.runs.verify.lines import read_gzip_lines
from mtrl_cli.runs.verify.outcomes import outcome
from mtrl_cli.runs.verify.report import Report


class StepFiles:
    """Checks the trajectory files of one run."""

    def __init__(
        self,
        folder: Path,
        run: str,
        declared: Declared,
        retelling: Retelling | None,
        *,
        trains: bool,
    ) -> None:
        self._folder = folder
        self._trains = trains
        self._run = run
        self._declared = declared
        self._retelling = retelling

    def check(
        self,
        name: str,
        digest: str | None,
        outcomes: Mapping[int, str] | None,
        policies: Mapping[int, tuple[str, int | None]],
        report: Report,
    ) -> None:
        """Check one file.

        Args:
            name: its path below the run's folder.
            digest: the SHA-256 of its text that the run recorded.
            outcomes: group → outcome, of the groups that must be in it; None where that is not
                recorded.
            policies: group → the policy that it was admitted under, and its step where it is
                known.
        """
        if not (self._folder / name).is_file():
            report.found(name, None, "is missing")
            return
        groups: dict[int, list[Episode]] = defaultdict(list)
        whole, before = hashlib.sha256(), len(report.findings)
        for raw in read_gzip_lines(self._folder, name, report):
            whole.update(raw.text)
            if raw.record is None:
                continue
            if not seal_holds(raw.text):
                report.found(name, raw.number, "is not as it was written (its sha256 differs)")
            try:
                found = episode(raw.number, raw.record)
            except Malformed as error:
                report.found(name, raw.number, str(error))
                continue
            groups[found.group].append(found)
        intact = len(report.findings) == before
        if intact and digest is not None and whole.hexdigest() != digest:
            report.found(name, None, "is another file than the commit names (its sha256 differs)")
        report.checked["trajectory files"] += 1
        for found in chain(*groups.values()):
            self._check_episode(name, found, report)
        for group, episodes in groups.items():
            for line, what in self._group_flaws(episodes, policies.get(group)):
                report.found(name, line, f"group {group}: {what}")
        if outcomes is not None:
            self._check_membership(name, groups, outcomes, report)
            if intact:
                self._check_outcomes(name, groups, outcomes, report)

    def _check_episode(self, name: str, found: Episode, report: Report) -> None:
        where = f"group {found.group} member {found.member}"
        if found.run != self._run:
            report.found(name, found.line, f"{where}: it belongs to the run {found.run!r}")
        for flaw in flaws(found, self._declared, self._retelling):
            report.found(name, found.line, f"{where}: {flaw}")
        report.checked["trajectories"] += 1
        report.checked["tokens"] += len(found.tokens)
        report.checked["sampled tokens"] += len(found.logprobs)

    def _check_membership(
        self,
        name: str,
        groups: Mapping[int, Sequence[Episode]],
        outcomes: Mapping[int, str],
        report: Report,
    ) -> None:
        for group in sorted(outcomes.keys() - groups.keys()):
            report.found(name, None, f"group {group} was consumed and is not in the file")
        for group in sorted(groups.keys() - outcomes.keys()):
            line = groups[group][0].line
            report.found(name, line, f"group {group} is not one that this file belongs to")

    def _check_outcomes(
        self,
        name: str,
        groups: Mapping[int, Sequence[Episode]],
        outcomes: Mapping[int, str],
        report: Report,
    ) -> None:
        for group in groups.keys() & outcomes.keys():
            episodes = groups[group]
            derived = outcome(episodes, self._declared, trains=self._trains)
            if derived is not None and derived != outcomes[group]:
                what = f"was recorded as {outcomes[group]!r}, its episodes say {derived!r}"
                report.found(name, episodes[0].line, f"group {group}: {what}")

    def _group_flaws(
        self, episodes: Sequence[Episode], admitted: tuple[str, int | None] | None
    ) -> Iterator[tuple[int, str]]:
        first = episodes[0]
        policy, step = admitted or (first.policy, None)
        for found in episodes:
            if found.policy != policy or (step is not None and found.policy_step != step):
                what = f"policy {found.policy} (step {found.policy_step}), admitted under"
                yield found.line, f"{what} {policy} (step {step})"
            elif (found.policy, found.policy_step) != (first.policy, first.policy_step):
                yield found.line, f"policy {found.policy}, another member has {first.policy}"
            if (found.task, found.task_seed) != (first.task, first.task_seed):
                yield found.line, f"task {found.task}, another member has {first.task}"
        yield from self._attempt_flaws(episodes)

    def _attempt_flaws(self, episodes: Sequence[Episode]) -> Iterator[tuple[int, str]]:
        """Each member once, its refills numbered from 0, and only the last one not failed."""
        members: dict[int, list[Episode]] = defaultdict(list)
        for found in episodes:
            members[found.member].append(found)
        size = self._declared.size
        for member, attempts in sorted(members.items()):
            attempts.sort(key=lambda found: found.refill)
            where = f"member {member}"
            if member < 0 or (size is not None and member >= size):
                yield attempts[0].line, f"{where} is outside 0 to group.size - 1"
            for number, found in enumerate(attempts):
                if found.refill != number:
                    yield (
                        found.line,
                        f"{where}: refill {found.refill} stands where {number} belongs",
                    )
                    break
            ended = [found for found in attempts if not found.failed]
            if len(ended) > 1:
                yield ended[1].line, f"{where} is there more than once"
            elif ended and attempts[-1] is not ended[0]:
                yield attempts[-1].line, f"{where} was played again after it had ended well"
        missing = [] if size is None else [m for m in range(size) if m not in members]
        for member in missing:
            yield episodes[0].line, f"member {member} is missing"
