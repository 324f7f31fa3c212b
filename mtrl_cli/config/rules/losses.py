"""The parameters of each loss: their defaults, and what they may be.

``clip_low_threshold`` and ``clip_high_threshold`` bound the importance ratio itself: 0.8 and 1.2
are PPO's ε = 0.2 (arXiv:1707.06347), 0.8 and 1.28 DAPO's higher upper bound (arXiv:2503.14476).
The defaults are the Tinker API's; they are always sent, so that no server's own ones apply.
``tau_pos`` and ``tau_neg`` are the temperatures of SAPO's gates.
"""

from collections.abc import Iterator, Mapping

from mtrl_cli.config.schema import Loss, ServerKind, TrainConfig

_LOW, _HIGH = "clip_low_threshold", "clip_high_threshold"
_CLIP: Mapping[str, float] = {_LOW: 0.8, _HIGH: 1.2}

_PARAMETERS: Mapping[Loss, Mapping[str, float]] = {
    Loss.importance_sampling: {},
    Loss.ppo: _CLIP,
    Loss.cispo: _CLIP,
    Loss.gspo: _CLIP,
    Loss.sapo: {"tau_pos": 1.0, "tau_neg": 1.0},
}


def known_parameters(loss: Loss, server: ServerKind) -> Mapping[str, float]:
    """The parameters of a loss on a server, with their defaults."""
    if loss is Loss.cispo and server is ServerKind.twinkle:
        return {_HIGH: _CLIP[_HIGH]}  # its loss has no lower bound
    return _PARAMETERS[loss]


def loss_parameters(train: TrainConfig, server: ServerKind) -> dict[str, float]:
    """All parameters of the configured loss."""
    return {**known_parameters(train.loss, server), **train.loss_config}


def loss_problems(train: TrainConfig, server: ServerKind) -> Iterator[tuple[str, object, str]]:
    """What is wrong with ``train.loss_config``: parameter, value, what is allowed."""
    known, loss = known_parameters(train.loss, server), train.loss.value
    for name, value in train.loss_config.items():
        if name not in known:
            yield name, value, f"{loss} takes {', '.join(known) or 'no parameter'}"
        elif name == _LOW and not 0 <= value <= 1:
            yield name, value, "from 0 to 1: the least ratio, such as 0.8 for ε = 0.2"
        elif name == _HIGH and not value >= 1:
            yield name, value, "at least 1: the largest ratio, such as 1.2 for ε = 0.2"
        elif name.startswith("tau_") and not value > 0:
            yield name, value, "above 0"
