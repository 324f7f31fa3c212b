"""What an experiment chooses among: the values of keys that take one word of a list."""

from enum import Enum


class ServerKind(Enum):
    local = "local"
    tinker = "tinker"
    twinkle = "twinkle"


class Backend(Enum):
    transformers = "transformers"
    megatron = "megatron"


class Snapshots(Enum):
    immutable = "immutable"
    newest_only = "newest_only"
    live = "live"


class Codec(Enum):
    auto = "auto"
    json = "json"
    protobuf = "protobuf"


class EnvKind(Enum):
    openenv = "openenv"
    openenv_remote = "openenv_remote"
    openenv_served = "openenv_served"
    e2b = "e2b"


class E2BPlan(Enum):
    hobby = "hobby"
    pro = "pro"


class RewardForm(Enum):
    sum = "sum"
    final = "final"


class OnFailure(Enum):
    refill = "refill"
    shrink = "shrink"
    drop = "drop"


class OnTruncated(Enum):
    penalize = "penalize"
    mask = "mask"
    skip_group = "skip_group"


class LossReduction(Enum):
    sum = "sum"
    datum_mean = "datum_mean"
    call_mean = "call_mean"


class Loss(Enum):
    importance_sampling = "importance_sampling"
    ppo = "ppo"
    cispo = "cispo"
    gspo = "gspo"
    sapo = "sapo"


class Advantage(Enum):
    mean = "mean"
    mean_std = "mean_std"
    leave_one_out = "leave_one_out"


class Weighting(Enum):
    token_mean = "token_mean"
    sequence_mean = "sequence_mean"
    constant = "constant"


class SkipRule(Enum):
    constant_reward = "constant_reward"
    model_truncated = "model_truncated"


class Schedule(Enum):
    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class SinkKind(Enum):
    tensorboard = "tensorboard"
    wandb = "wandb"
    trackio = "trackio"
    mlflow = "mlflow"
