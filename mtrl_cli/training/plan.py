"""What an experiment asks of training, in training's own words.

The plan is derived from the composed `Experiment` once; the loop reads nothing else.
"""

from dataclasses import dataclass, fields, replace

from mtrl_cli.config import schema as config
from mtrl_cli.config.rules.losses import loss_parameters
from mtrl_cli.config.schema import Experiment
from mtrl_cli.rollout.admission import Budget, GroupAdmission
from mtrl_cli.rollout.group import FailureRule
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.ports import SamplingParams, TaskSample
from mtrl_cli.servers.interface import AdamSpec, LossSpec, ModelSpec
from mtrl_cli.training.evaluation.evaluate import EvaluationPlan
from mtrl_cli.training.step.advantages import AdvantageForm
from mtrl_cli.training.step.audit import BFLOAT16, FLOAT32, AuditRules, Limits
from mtrl_cli.training.step.groups import OnTruncated, SkipRule
from mtrl_cli.training.step.schedule import kl_coefficient, learning_rate
from mtrl_cli.training.step.weighting import Weighting


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The numbers of a run, taken from its experiment."""

    experiment: Experiment

    @property
    def seed(self) -> int:
        return self.experiment.seed

    @property
    def steps(self) -> int:
        return self.experiment.train.steps

    @property
    def group_size(self) -> int:
        return self.experiment.group.size

    @property
    def groups_per_step(self) -> int:
        return self.experiment.group.per_step

    @property
    def on_truncated(self) -> OnTruncated:
        mask = self.experiment.group.on_truncated is config.OnTruncated.mask
        return "mask" if mask else "penalize"

    @property
    def skip(self) -> frozenset[SkipRule]:
        """The skip rules; ``group.on_truncated: skip_group`` is a way to write one of them."""
        rules: set[SkipRule] = {rule.value for rule in self.experiment.train.skip}
        if self.experiment.group.on_truncated is config.OnTruncated.skip_group:
            rules.add("model_truncated")
        return frozenset(rules)

    @property
    def least_members(self) -> int | None:
        """How many members a group needs: the floor where members may be missing."""
        group = self.experiment.group
        return group.floor if group.on_failure is config.OnFailure.shrink else None

    @property
    def failure_rule(self) -> FailureRule:
        group = self.experiment.group
        return FailureRule(group.on_failure.value, group.max_refills, group.floor)

    @property
    def budget(self) -> Budget:
        """A trajectory leaves one token of the window free: its logprobs, for the KL penalty and
        the audit, are asked for as the prompt of one more token."""
        budget = self.experiment.budget
        return Budget(
            turn_tokens=budget.turn_tokens,
            trajectory_tokens=budget.trajectory_tokens,
            context=self.experiment.server.context - 1,
            max_turns=budget.max_turns,
            deadline=budget.deadline,
        )

    @property
    def sampling(self) -> SamplingParams:
        group = self.experiment.group
        return SamplingParams(group.temperature, group.top_k, group.top_p)

    @property
    def advantage(self) -> AdvantageForm:
        return self.experiment.train.advantage.value

    @property
    def loss(self) -> LossSpec:
        train = self.experiment.train
        parameters = loss_parameters(train, self.experiment.server.kind)
        return LossSpec(train.loss.value, parameters, self.experiment.group.temperature)

    @property
    def weighting(self) -> Weighting:
        length = self.experiment.budget.trajectory_tokens
        return Weighting(self.experiment.train.weighting.value, length)

    @property
    def max_tokens_per_call(self) -> int | None:
        return self.experiment.train.max_tokens_per_call

    @property
    def audit(self) -> AuditRules:
        audit = self.experiment.audit
        local = self.experiment.server.kind is config.ServerKind.local
        chosen = {
            item.name: getattr(audit, item.name)
            for item in fields(Limits)
            if getattr(audit, item.name) is not None
        }
        return AuditRules(audit.every, replace(FLOAT32 if local else BFLOAT16, **chosen))

    @property
    def model(self) -> ModelSpec:
        train = self.experiment.train
        return ModelSpec(
            base_model=self.experiment.server.base_model,
            lora_rank=train.lora_rank,
            lora_alpha=train.lora_alpha,
            seed=self.experiment.seed,
            loss=self.loss,
            adam=self.adam(0),
        )

    @property
    def max_policy_lag(self) -> int:
        return self.experiment.train.max_policy_lag

    @property
    def checkpoint_every(self) -> int:
        return self.experiment.train.checkpoint_every

    @property
    def save_trajectories(self) -> bool:
        return self.experiment.run.trajectories

    @property
    def evaluate_every(self) -> int:
        return self.experiment.eval.every

    @property
    def evaluation(self) -> EvaluationPlan:
        """The evaluation before and after training."""
        return self._evaluation(self.experiment.eval.games)

    @property
    def evaluation_during(self) -> EvaluationPlan:
        return self._evaluation(self.experiment.eval.games_during)

    def admission(
        self, run: str, stream: str, group: int, task: TaskSample, policy: PolicySnapshot
    ) -> GroupAdmission:
        """A group of the experiment's size, sampling and budget, under ``policy``."""
        return GroupAdmission(
            run=run,
            stream=stream,
            run_seed=self.seed,
            group=group,
            size=self.group_size,
            task=task,
            policy=policy.uri,
            policy_step=policy.step,
            sampling=self.sampling,
            budget=self.budget,
        )

    def adam(self, step: int) -> AdamSpec:
        """The optimizer's parameters at a step (0-based)."""
        train = self.experiment.train
        rate = learning_rate(
            train.learning_rate, train.schedule.value, train.warmup_steps, step, train.steps
        )
        return AdamSpec(
            learning_rate=rate,
            beta1=train.beta1,
            beta2=train.beta2,
            eps=train.eps,
            weight_decay=train.weight_decay,
            grad_clip_norm=train.grad_clip_norm,
        )

    def kl(self, step: int) -> float:
        """The KL coefficient at a step (0-based)."""
        train = self.experiment.train
        return kl_coefficient(train.kl, train.kl_end_step, step)

    def _evaluation(self, games: int) -> EvaluationPlan:
        evaluation, sampling = self.experiment.eval, self.sampling
        if evaluation.greedy:
            sampling = SamplingParams(temperature=0.0)
        return EvaluationPlan(games, evaluation.seed, sampling, self.budget)
