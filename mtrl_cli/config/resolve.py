"""From a composed configuration to one frozen `Experiment`: the last step before a run.

Only here are interpolations resolved and secrets read from the environment.
"""

import re

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mtrl_cli.config.compose import Composed
from mtrl_cli.config.errors import ConfigError, key_of, together
from mtrl_cli.config.refusals import schema_error
from mtrl_cli.config.rules.validate import validate
from mtrl_cli.config.schema import Experiment
from mtrl_cli.config.secrets import MASK, leaves

_WITHOUT = {
    "E2B_API_KEY": "; without an account, mtrl dev e2b-emulator serves an emulator and says what to"
    " export",
}
"""What else helps who has no value for a variable."""

_NO_VARIABLE = re.compile(r"Environment variable '([^']+)' not found")


def resolve(composed: Composed, *, secrets: bool = True) -> Experiment:
    """Resolve interpolations and build the frozen experiment.

    With ``secrets`` False every secret, and every copy of one, is a mask: for showing what would
    happen where no secret is needed.

    Raises:
        ConfigError: a key has no value, a variable is not set, an interpolation leads nowhere.
    """
    _require_values(composed)
    config = composed.config
    if secrets:
        _refuse_masks(composed)
    else:
        config = config.copy()
        for key, _, secret in leaves(composed.container):
            if secret:
                try:
                    OmegaConf.update(config, key, MASK)
                except OmegaConfBaseException as error:  # a section, and no section was given
                    raise _refused(error, composed) from error
    try:
        experiment = OmegaConf.to_object(config)
    except OverflowError as error:
        raise ConfigError(
            f"an interpolation makes a number beyond every bound ({error})"
        ) from error
    except OmegaConfBaseException as error:
        raise _unresolved(error, composed) from error
    assert isinstance(experiment, Experiment)
    return experiment


def refuse_invalid(experiment: Experiment, composed: Composed, *, training: bool) -> None:
    """Raise what `validate` finds, each problem with what set its key."""
    problems = validate(experiment, training=training)
    if problems:
        raise together([ConfigError(one, at=composed.origin(key_of(one))) for one in problems])


def _require_values(composed: Composed) -> None:
    missing = composed.missing
    if not missing:
        return
    keys = ", ".join(missing)
    example = " ".join(f"{key}=VALUE" for key in missing)
    raise ConfigError(
        f"{keys} must be set" if len(missing) == 1 else f"these keys must be set: {keys}",
        at=composed.origin(missing[0]),
        hint=f"add {example} to the command or to the experiment's file",
    )


def _refuse_masks(composed: Composed) -> None:
    """A saved configuration has its literal secrets masked; the mask is not the secret."""
    for key, value, secret in leaves(composed.container):
        if isinstance(value, str) and (MASK in value if secret else f"://{MASK}@" in value):
            raise ConfigError(
                f"{key} was masked when this configuration was saved",
                at=composed.origin(key),
                hint=f"give it again from the environment: '{key}=${{oc.env:NAME}}'",
            )


def _unresolved(error: OmegaConfBaseException, composed: Composed) -> ConfigError:
    key = str(error.full_key or "")
    if match := _NO_VARIABLE.search(str(error)):
        name = match.group(1)
        return ConfigError(
            f"environment variable {name} is not set",
            at=f"{key} in {composed.origin(key)}" if key else None,
            hint=f"export {name}=…, or name another variable: '{key}=${{oc.env:NAME}}'"
            + _WITHOUT.get(name, ""),
        )
    return _refused(error, composed)


def _refused(error: OmegaConfBaseException, composed: Composed) -> ConfigError:
    return schema_error(error, composed.container, composed.sources.set_by)
