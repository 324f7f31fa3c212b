"""Which policies ``mtrl eval`` plays: ``policy=`` and ``--against``, before anything is made."""

from collections.abc import Iterator
from dataclasses import dataclass

from mtrl_cli.config.rules.assumed import assumed
from mtrl_cli.config.schema import Experiment, Snapshots
from mtrl_cli.errors import UsageError
from mtrl_cli.training.policies.choose import ChosenPolicy, choose_policy

_NONE, _BASE = "none", "base"


@dataclass(frozen=True, slots=True)
class Contest:
    """Which policy is evaluated, and against which one; a policy None is the base model."""

    policy: ChosenPolicy | None
    compares: bool
    rival: ChosenPolicy | None
    notice: str | None = None
    """Why it is compared with none, where that was not asked for."""

    def notices(self, experiment: Experiment) -> Iterator[str]:
        """What a person should know before it begins."""
        if self.notice is not None:
            yield self.notice
        strange = None if self.policy is None else self.policy.strange_to(experiment)
        if strange is not None:
            yield strange

    def uri(self, experiment: Experiment) -> str:
        return _uri(self.policy, experiment)

    def rival_uri(self, experiment: Experiment) -> str | None:
        return _uri(self.rival, experiment) if self.compares else None


def choose_contest(experiment: Experiment, against: str | None) -> Contest:
    """Resolve ``experiment.policy`` and ``--against`` before anything is created.

    Without ``against`` the rival is the policy that the run began from, where the policy comes
    from a run, else the base model.

    Raises:
        UsageError: there is no such policy, it lives on another server, or the server cannot
            play two policies side by side.
    """
    if not experiment.eval.games:
        raise UsageError("eval.games is 0: nothing would be played; write at least 1")
    policy = choose_policy(experiment, experiment.policy)
    if against == _NONE:
        return Contest(policy, False, None)
    snapshots = assumed(experiment.server).snapshots
    if snapshots is not Snapshots.immutable:
        why = f"this server does not keep old policies (server.snapshots {snapshots.value})"
        if against is not None:
            raise UsageError(f"--against {against}: {why}; write --against none")
        return Contest(policy, False, None, f"compared with no other policy: {why}")
    if against is None:
        return _by_default(experiment, policy)
    rival = None if against == _BASE else choose_policy(experiment, against)
    if _uri(rival, experiment) == _uri(policy, experiment):
        raise UsageError(f"--against {against}: it is the very policy; write another, or none")
    return Contest(policy, True, rival)


def _by_default(experiment: Experiment, policy: ChosenPolicy | None) -> Contest:
    initial = policy.initial if policy is not None else None
    rival = ChosenPolicy(initial, 0) if initial is not None else None
    if _uri(rival, experiment) == _uri(policy, experiment):
        return Contest(policy, False, None)
    return Contest(policy, True, rival)


def _uri(policy: ChosenPolicy | None, experiment: Experiment) -> str:
    return f"{_BASE}://{experiment.server.base_model}" if policy is None else policy.uri
