"""What an E2B account allows, and how long a run takes under that.

The plans' figures are those of https://e2b.dev/docs/sandbox/rate-limits (August 2026).
"""

from dataclasses import dataclass

from mtrl_cli.config.rules.workload import Workload, environments
from mtrl_cli.config.schema import E2BConfig, E2BPlan, Experiment


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one account."""

    at_once: int
    per_second: float
    longest: float
    """Seconds that a sandbox may live."""


_PLANS = {
    E2BPlan.hobby: SandboxLimits(20, 1.0, 3600.0),
    E2BPlan.pro: SandboxLimits(100, 5.0, 86400.0),
}


def sandbox_limits(config: E2BConfig) -> SandboxLimits:
    """The plan's, where the configuration does not say otherwise."""
    plan = _PLANS[config.plan]
    return SandboxLimits(
        plan.at_once if config.at_once is None else config.at_once,
        plan.per_second if config.per_second is None else config.per_second,
        plan.longest if config.longest is None else config.longest,
    )


@dataclass(frozen=True, slots=True)
class SandboxNeed:
    """What a run asks of the account, as far as it is known before: no refill is counted."""

    sandboxes: int
    at_once: int
    per_second: float
    seconds: float
    """The least that creating them takes."""


def sandbox_need(experiment: Experiment, work: Workload) -> SandboxNeed:
    """Of a run with so much to play."""
    sandboxes = environments(experiment, work.episodes)
    limits = sandbox_limits(experiment.env.e2b)
    at_once = min(limits.at_once, work.at_once)
    return SandboxNeed(sandboxes, at_once, limits.per_second, sandboxes / limits.per_second)
