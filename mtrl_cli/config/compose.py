"""From an experiment's name and overrides to one unresolved, typed configuration.

Hydra's Compose API merges the YAML files; the schema then judges the result as a whole, so that
a key that no YAML file should have is refused wherever it stands. Nothing is resolved here:
the result holds ``${oc.env:…}`` as written, and so no secret that the user kept out of it.
"""

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import hydra
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from mtrl_cli.config.anchor import anchor
from mtrl_cli.config.errors import ConfigError, key_of, together
from mtrl_cli.config.files import places
from mtrl_cli.config.files.defaults import PRIMARY, SELF, refuse_hydras_own, without_hydras_own
from mtrl_cli.config.files.lines import line_of
from mtrl_cli.config.files.locate import locate
from mtrl_cli.config.files.reading import experiment
from mtrl_cli.config.files.shapes import shape_errors
from mtrl_cli.config.keys import schema_keys
from mtrl_cli.config.overrides import CheckedOverride, check_all, split_conf
from mtrl_cli.config.refusals import all_refused, refuse_dotted
from mtrl_cli.config.replaced import refuse_replaced, refuse_stray
from mtrl_cli.config.schema import Experiment
from mtrl_cli.config.secrets import (
    Redactor,
    SecretKey,
    leaves,
    masked,
    redactor,
    secret_keys,
)
from mtrl_cli.config.sources import Sources, chain, value_at

_BEYOND = 2**64

_lock = threading.Lock()
_dirs: list[Path] = []
"""Folders after the first one, which is Hydra's own argument."""


class _SearchPath(SearchPathPlugin):
    """Tells Hydra where mtrl looks for YAML files."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in _dirs:
            search_path.append(provider="mtrl", path=f"file://{folder}")


@dataclass(frozen=True)
class Composed:
    """An experiment as composed: typed, unresolved, and where each part came from."""

    conf: str
    file: Path
    config: DictConfig
    choices: Mapping[str, str]
    overrides: tuple[CheckedOverride, ...]
    dirs: tuple[Path, ...]

    @cached_property
    def container(self) -> dict[str, Any]:
        """The values as written, in plain dicts and lists."""
        return _plain(self.config)

    @property
    def yaml(self) -> str:
        """The text to save: unresolved, secrets masked; it composes again with ``conf=FILE``."""
        return OmegaConf.to_yaml(OmegaConf.create(masked(self.container)), resolve=False)

    @property
    def missing(self) -> tuple[str, ...]:
        """Keys that have no value yet (``???``)."""
        return tuple(key for key, value, _ in leaves(self.container) if value == "???")

    @property
    def secrets(self) -> list[SecretKey]:
        return secret_keys(self.container)

    @cached_property
    def redact(self) -> Redactor:
        """Takes this experiment's secrets out of any text."""
        return redactor(self.container, self._resolved_secrets())

    def _resolved_secrets(self) -> Iterator[object]:
        for key, value, secret in leaves(self.container):
            if secret and isinstance(value, str) and "${" in value:
                try:
                    found = OmegaConf.select(self.config, key)
                except OmegaConfBaseException:
                    continue  # a variable that is not set holds no secret
                if found is not None:
                    yield found

    @cached_property
    def sources(self) -> Sources:
        """The files and the overrides."""
        return Sources(self.file, self.dirs, self.choices, self.overrides)

    def origin(self, key: str) -> str:
        """What set a key: the override, or the file and the line."""
        return self.sources.set_by(key, value_at(self.container, key))

    def setter(self, problem: str) -> str | None:
        """As `origin`, of the key that ``problem`` begins with; None where that is no key, or one
        that nothing sets."""
        word = key_of(problem)
        origin = self.sources.origin(word, value_at(self.container, word))
        is_key = word in schema_keys() or word.startswith(_OPEN)
        return origin.told if is_key and origin.kind != "default" else None


_OPEN = ("task.params.", "env.params.")
"""Below these, keys are the task's or the environment's own."""


def compose(
    conf: str | None,
    overrides: Sequence[str] = (),
    config_dirs: Sequence[str | Path] = (),
) -> Composed:
    """Compose an experiment. ``conf`` is a name or a file; None is the default experiment.

    Raises:
        ConfigError: with what is wrong, where, and what to write instead.
    """
    named, rest = split_conf(overrides)
    asked = conf or named or places.DEFAULT_EXPERIMENT
    file, dirs = locate(asked, config_dirs)
    node = experiment(file)
    built_on = []
    for source in chain(file, dirs):
        built_on.append(source)
        refuse_hydras_own(source.values, source.defaults, source.file)
    checked = check_all(rest, dirs)
    container, choices = _compose(node, file, checked, dirs)
    refuse_stray(container, built_on)
    refuse_replaced(container, built_on, checked)
    sources = Sources(file, dirs, choices, checked)
    anchor(container, sources)
    composed = _typed(asked, container, sources)
    _refuse_without_base(node, container, file)
    return composed


def _compose(
    node: dict[str, Any],
    file: Path,
    overrides: tuple[CheckedOverride, ...],
    dirs: tuple[Path, ...],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Let Hydra merge the files: the merged values, and the option chosen for each group."""
    # A file without a defaults list (a run's saved config.yaml) has no group to override: an
    # option chosen on the command line is then added on top.
    add = "" if "defaults" in node else "+"
    told = [f"{add}{one.hydra}" if one.group else one.hydra for one in overrides]
    with _lock, warnings.catch_warnings():
        # Hydra only warns about a defaults list without `_self_`, and then merges in an order
        # that the user did not write.
        warnings.filterwarnings("error", message=".*missing `_self_`", category=UserWarning)
        Plugins.instance().register(_SearchPath)
        _dirs[:] = dirs[1:]
        ConfigStore.instance().store(name=PRIMARY, node=without_hydras_own(node))
        try:
            with initialize_config_dir(str(dirs[0]), job_name="mtrl", version_base="1.3"):
                config = hydra.compose(PRIMARY, overrides=told, return_hydra_config=True)
        except Exception as error:  # Hydra lets through whatever reading a group's file raised
            from mtrl_cli.config.unmerged import unmerged

            raise unmerged(error, file, dirs, overrides) from error
    chosen = config.hydra.runtime.choices
    choices = {str(group): str(chosen[group]) for group in chosen if "hydra" not in str(group)}
    for group, option in choices.items():
        places.find(dirs, f"{group}/{option}")  # Hydra passes over what is no file
    with open_dict(config):
        del config["hydra"]
    return _plain(config), choices


def _refuse_without_base(node: dict[str, Any], container: dict[str, Any], file: Path) -> None:
    """A section that no file mentions would have the schema's values, which are not those of
    conf/config.yaml: the experiment would silently be another one."""
    kinds = schema_keys()
    grouped = [group for group in places.groups([places.packaged_conf()]) if group in kinds]
    missing = ", ".join(group for group in grouped if group not in container)
    if not missing:
        return
    if not node:
        told = "the file is empty"
    elif node.get("defaults"):
        told = f"neither this file nor what it builds on sets {missing}"
    else:
        told = f"it builds on no other file, and does not set {missing}"
    raise ConfigError(
        told,
        at=places.named(file, line_of(file, "defaults")),
        hint=f"begin it with `defaults: [{places.BASE}, {SELF}]` for all other values",
    )


def _typed(asked: str, container: dict[str, Any], sources: Sources) -> Composed:
    """Merge into the schema, which refuses unknown keys and wrong types."""
    set_by = sources.set_by
    refuse_dotted(container, set_by)
    if wrong := shape_errors(container, lambda key: set_by(key, value_at(container, key))):
        raise together(wrong)
    for key, value, _ in leaves(container):
        if isinstance(value, int) and abs(value) >= _BEYOND:  # also for OmegaConf, where it ends
            raise ConfigError(f"{key}: a number far beyond every bound", at=set_by(key, value))
        if isinstance(value, str) and "\0" in value and ".params" not in key:
            raise ConfigError(
                f"{key}: no text here holds a NUL character",
                at=set_by(key, value),
                hint="take the `\\0` out of it",
            )
    try:
        config = _merged(container)
        # A merge keeps the schema's default where a file says `???`: state the gap again.
        for key, value, _ in leaves(container):
            if value == "???":
                OmegaConf.update(config, key, "???")
    except OmegaConfBaseException as error:
        raise all_refused(error, container, set_by, _merged) from error
    assert isinstance(config, DictConfig)
    return Composed(asked, sources.file, config, sources.choices, sources.overrides, sources.dirs)


def _merged(container: dict[str, Any]) -> Any:
    """The values in a schema of their own."""
    # Nothing else holds its nodes or the container: they need not be copied.
    schema = OmegaConf.structured(Experiment, flags={"no_deepcopy_set_nodes": True})
    schema._set_flag("no_deepcopy_set_nodes", None)
    _thaw(schema)
    return OmegaConf.unsafe_merge(schema, container)


def _plain(config: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _thaw(node: DictConfig) -> None:
    """Frozen dataclasses become read-only nodes, which a merge could not fill."""
    node._set_flag("readonly", None)
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig):
            _thaw(child)
