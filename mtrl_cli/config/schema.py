"""The schema of an experiment: one frozen dataclass per config group.

A YAML file composes into these classes and nothing else: unknown keys, wrong types and values
out of range are refused before anything is contacted or created. Enum members (`choices`) are
named as the user types them.
"""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from mtrl_cli.config.choices import (
    Advantage,
    Backend,
    Codec,
    E2BPlan,
    EnvKind,
    Loss,
    LossReduction,
    OnFailure,
    OnTruncated,
    RewardForm,
    Schedule,
    ServerKind,
    SinkKind,
    SkipRule,
    Snapshots,
    Weighting,
)

__all__ = [
    "Advantage",
    "Backend",
    "Codec",
    "E2BPlan",
    "EnvKind",
    "Loss",
    "LossReduction",
    "OnFailure",
    "OnTruncated",
    "RewardForm",
    "Schedule",
    "ServerKind",
    "SinkKind",
    "SkipRule",
    "Snapshots",
    "Weighting",
]
"""The words to choose from; the sections stand below."""


@dataclass(frozen=True)
class ServerConfig:
    """The training service: where the weights live."""

    kind: ServerKind = ServerKind.local
    """``local``: the embedded server. ``tinker``: any server of the Tinker HTTP API. ``twinkle``:
    a Twinkle server, by its own routes."""
    base_url: str | None = None
    """Address of a running server. For ``local``: None starts one for the run and ends it."""
    api_key: str | None = None
    """Taken from the environment: ``${oc.env:MTRL_API_KEY,null}``."""
    base_model: str = "mtrl-tiny"
    """The model to train, as the server names it."""
    tokenizer: str = "mtrl-tiny"
    """A packaged tokenizer's name, or the path of a ``tokenizer.json``."""
    renderer: str = "qwen3"
    """A renderer of the ``renderers`` package."""
    context: int = 2048
    """Context window in tokens, prompt and completion together."""
    store: str | None = None
    """Folder of the embedded server's weights; None is the user's data folder."""
    connections: int = 256
    """Requests in flight at once."""
    sample_timeout: float = 120.0
    """Seconds for one sampled turn, polling included."""
    training_timeout: float = 600.0
    """Seconds for one training call, polling included."""
    codec: Codec = Codec.auto
    """Format of the bodies that hold arrays. ``auto``: what mtrl knows of the server; of an unknown
    one, JSON until it says that it cannot read it. See docs/servers.md."""
    snapshots: Snapshots | None = None
    """What the server samples an old policy with: its own weights (``immutable``), nothing, as
    only the newest policy is kept (``newest_only``), or the weights in training (``live``). None
    is what mtrl knows of the server."""
    dedupes: bool | None = None
    """Whether the server executes a training call once that it gets twice. None is what mtrl
    knows of the server; where it is true, a call of unknown outcome is sent again."""
    loss_reduction: LossReduction | None = None
    """How the server makes one loss of a step's tokens: their ``sum``; the mean over each datum's
    tokens and then over the step's datums (``datum_mean``, SkyRL tx); or the sum over each call's
    tokens and the mean over the step's calls (``call_mean``, Twinkle). None is what mtrl knows of
    the server. See docs/algorithms.md."""
    leaks_gradients: bool | None = None
    """Whether gradients that an unloaded model was left with reach the next model in its place
    (SkyRL tx). None is what mtrl knows of the server; where it is true, a run that left some is
    not resumed without ``--force``."""
    backend: Backend = Backend.transformers
    """Twinkle: the backend of the model app."""
    template: str = "Template"
    """Twinkle: the template class of the model, ``Template`` or ``Qwen3_5Template``."""
    tokens_per_call: int = 16_000
    """Twinkle: most prompt tokens of one sampling call, which holds many turns; at most the
    server's ``max_input_tokens``."""


@dataclass(frozen=True)
class E2BConfig:
    """E2B, with ``env.kind: e2b``: one sandbox per trajectory."""

    api_key: str | None = None
    """Taken from the environment: ``${oc.env:E2B_API_KEY}``."""
    template: str = "base"
    """The template that sandboxes are made of; it needs ``python3``, 3.8 or later."""
    files: list[str] = field(default_factory=list)
    """Modules and files that the game needs beside its own; they are put into every sandbox."""
    plan: E2BPlan = E2BPlan.hobby
    """The account's plan, for the three limits below: 20 at once, 1 a second, 3600 s; or 100,
    5 a second, 86400 s."""
    at_once: int | None = None
    """The most sandboxes at once; None is the plan's."""
    per_second: float | None = None
    """Sandboxes created a second; None is the plan's."""
    longest: float | None = None
    """Seconds that a sandbox may live; None is the plan's."""
    settles: float = 75.0
    """Seconds after which a creation that was not answered can have no further effect."""


@dataclass(frozen=True)
class EnvConfig:
    """The environment backend: where an episode's world runs."""

    kind: EnvKind = EnvKind.openenv
    """``openenv``: an OpenEnv Environment class, run in this process. ``openenv_remote``: sessions
    of an OpenEnv server that runs. ``openenv_served``: of one that is started for the run.
    ``e2b``: a plain class, run in a sandbox at E2B."""
    entrypoint: str | None = None
    """The OpenEnv Environment class of ``openenv`` and ``openenv_served``, or the ``e2b`` game's
    class, as ``module:Class`` or ``path.py:Class``."""
    app: str | None = None
    """For ``openenv_served``, in place of ``entrypoint``: the application, as ``module:app``."""
    base_url: str | None = None
    """Address of the server of ``openenv_remote``."""
    api_key: str | None = None
    """For ``openenv_remote``: sent as a bearer token. Taken from the environment:
    ``${oc.env:MY_KEY}``."""
    headers: dict[str, str] = field(default_factory=dict)
    """For ``openenv_remote``: sent with every connection; secrets, like ``api_key``."""
    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the Environment class."""
    reward: RewardForm = RewardForm.sum
    """An episode's reward: the ``sum`` of all steps' rewards, or the ``final`` step's alone."""
    max_observation: int = 20_000
    """Characters of an observation that the model reads; the rest is cut, visibly."""
    check_seeds: bool = True
    """At start-up, compare two episodes of the same seed, and say so when they begin
    differently."""
    threads: int = 4
    """Worker threads that run synchronous environments; 0 runs them on the event loop, without
    deadlines."""
    open_timeout: float = 30.0
    """Seconds to make one instance."""
    reset_timeout: float = 30.0
    """Seconds to begin one episode."""
    step_timeout: float = 30.0
    """Seconds for one tool call."""
    close_timeout: float = 10.0
    """Seconds to give one instance back."""
    e2b: E2BConfig = field(default_factory=E2BConfig)


@dataclass(frozen=True)
class TaskConfig:
    """What is played."""

    name: str = MISSING
    """The task's name, in task ids and on the screen."""
    entrypoint: str = MISSING
    """The task class, as ``module:Class`` or ``path.py:Class``."""
    unfinished_reward: float = -1.0
    """The reward of an episode that ends without the environment's ``done``."""
    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the task class."""


@dataclass(frozen=True)
class GroupConfig:
    """GRPO groups, and how their members are sampled."""

    size: int = 8
    """Trajectories of one group: same task sample, same policy."""
    per_step: int = 16
    """Groups that one step consumes."""
    temperature: float = 1.0
    """Sampling temperature; above 0 for training."""
    top_k: int = -1
    """Tokens to sample from; -1 is all of them, as training needs."""
    top_p: float = 1.0
    """Probability mass to sample from; 1 is all of it, as training needs."""
    on_failure: OnFailure = OnFailure.refill
    """What an infrastructure failure does: play the member again, go on with fewer members, or
    give the group up."""
    max_refills: int = 2
    """Refills per member before the group fails."""
    floor: int = 2
    """With ``on_failure: shrink``, the least members that a group may have."""
    on_truncated: OnTruncated = OnTruncated.penalize
    """What a token budget does that ran out: the unfinished reward, the member out of the loss, or
    the whole group out (another way to write ``train.skip: [model_truncated]``)."""


@dataclass(frozen=True)
class BudgetConfig:
    """Length and time budgets of one trajectory."""

    turn_tokens: int = 64
    """Most tokens sampled in one turn."""
    trajectory_tokens: int = 1024
    """Most tokens of a whole trajectory, prompt included."""
    max_turns: int = 8
    """Most sampled turns of an episode."""
    deadline: float = 300.0
    """Seconds from admission to the end of the episode."""


@dataclass(frozen=True)
class TrainConfig:
    """The optimisation."""

    steps: int = 150
    """Optimizer steps."""
    loss: Loss = Loss.importance_sampling
    """The policy-gradient loss, computed by the server; ``gspo`` and ``sapo`` by Twinkle only."""
    loss_config: dict[str, float] = field(default_factory=dict)
    """Parameters of the loss. ``ppo``, ``cispo`` and ``gspo``: ``clip_low_threshold`` (0.8; from 0
    to 1) and ``clip_high_threshold`` (1.2; at least 1), bounds of the importance ratio itself;
    ``sapo``: ``tau_pos`` and ``tau_neg`` (1.0, above 0); ``importance_sampling``: none. Twinkle's
    ``cispo`` has no lower bound."""
    advantage: Advantage = Advantage.mean_std
    """Reward less the group's mean; the same over the standard deviation; reward less the mean of
    the others."""
    weighting: Weighting = Weighting.token_mean
    """The step's mean: over all sampled tokens; over each trajectory's tokens and then over
    trajectories; or the trajectories' sums over ``budget.trajectory_tokens``, then over
    trajectories."""
    skip: list[SkipRule] = field(default_factory=list)
    """Groups that are left out altogether: those whose rewards are equal (without the rule they
    keep their KL term), those with a member that a token budget ended."""
    max_tokens_per_call: int | None = None
    """Most tokens of one forward/backward call; a step's datums are cut into as many calls as it
    takes. None or 0 sends one call."""
    learning_rate: float = 1e-3
    """Adam's learning rate, at its highest."""
    schedule: Schedule = Schedule.constant
    """What the learning rate does after the warm-up, down to 0 at the last step."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises from 0."""
    beta1: float = 0.9
    """Adam: decay of the first moment."""
    beta2: float = 0.95
    """Adam: decay of the second moment."""
    eps: float = 1e-8
    """Adam: added to the denominator."""
    weight_decay: float = 0.0
    """Adam: decoupled weight decay."""
    grad_clip_norm: float = 1.0
    """Norm to which the gradient is clipped; 0 does not clip."""
    kl: float = 0.0
    """Coefficient of the KL penalty to the initial policy."""
    kl_end_step: int | None = None
    """The step at which the KL coefficient has fallen linearly to 0; None keeps it constant."""
    lora_rank: int | None = 32
    """Rank of the LoRA adapter; None trains all weights, where the server can."""
    lora_alpha: float = 32.0
    """Scale of the LoRA adapter."""
    max_policy_lag: int = 0
    """Steps that a group's policy may be behind when it is trained; 0 samples and trains in
    turn, 1 or more samples the next groups while a step trains."""
    checkpoint_every: int = 25
    """Steps between saved training states, which a resume can begin at; the last step of a run or
    of a drain has one too. 0 saves one at a drain only: a resume after anything else begins
    anew."""


@dataclass(frozen=True)
class AuditConfig:
    """The sampler's logprobs against the trainer's, of the same tokens; see docs/audit.md.

    A threshold of 0 is off; None is what fits the server: tight for the embedded one, which
    computes both sides in float32, and room for rounding on others.
    """

    every: int = 1
    """Steps from one audit to the next; the first step of a run or resume is always audited, 0
    audits nothing else."""
    warn_max: float | None = None
    """Largest difference of one token that is not warned of."""
    warn_mean: float | None = None
    """Mean absolute difference that is not warned of."""
    stop_max: float | None = None
    """Largest difference of one token that does not stop the run."""
    stop_mean: float | None = None
    """Mean absolute difference that does not stop the run."""
    limit: float | None = None
    """The difference above which a token is counted in ``audit/above``."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation on a fixed set of fresh task samples, never trained on."""

    games: int = 6000
    """Episodes before and after training; 0 evaluates nothing."""
    every: int = 0
    """Steps between evaluations during training; 0 evaluates only before and after."""
    games_during: int = 500
    """Episodes of an evaluation during training."""
    seed: int = 0
    """Names the set of games; nothing else changes it."""
    greedy: bool = False
    """Temperature 0 instead of the training's."""


@dataclass(frozen=True)
class RunConfig:
    """The run: where it is recorded, how much of it is in flight."""

    dir: str = "runs"
    """Folder of the run folders."""
    trajectories: bool = True
    """Write every training trajectory to the run folder."""
    concurrency: int = 256
    """Trajectories in flight at once."""
    drain_timeout: float = 60.0
    """Seconds that issued work may take to settle after the first Ctrl-C."""


@dataclass(frozen=True)
class SinkConfig:
    """What the sinks of ``sinks`` are told."""

    project: str = "mtrl"
    """Weights & Biases, trackio: the project that the run appears in; MLflow: the experiment."""


@dataclass(frozen=True)
class Experiment:
    """One declared experiment, composed and validated."""

    name: str = MISSING
    """The experiment's name, in the run folder and on the screen."""
    seed: int = 0
    """The seed of everything that is drawn at random: tasks, sampling, a new model's weights."""
    policy: str | None = None
    """The policy that ``mtrl rollout`` and ``mtrl eval`` play: a name, ``RUN@STEP``, ``last`` or a
    URI (docs/publish.md); None is the base model."""
    server: ServerConfig = field(default_factory=ServerConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    group: GroupConfig = field(default_factory=GroupConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    run: RunConfig = field(default_factory=RunConfig)
    sinks: list[SinkKind] = field(default_factory=list)
    """Trackers that get the run's figures; see docs/sinks.md."""
    sink: SinkConfig = field(default_factory=SinkConfig)
