"""The shape of what is written, before anything merges it: a mapping, a list, or one value.

Hydra and OmegaConf stop at a wrong shape without saying which key has it, and pass some that
nothing can read later. Types of single values are OmegaConf's to judge.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args, get_origin

from mtrl_cli.config.errors import ConfigError
from mtrl_cli.config.keys import options_of, schema_keys, type_of
from mtrl_cli.config.wording import wrong_value

Where = Callable[[str], str]
"""Of a dotted key, where it stands."""


def shape_errors(tree: Mapping[Any, Any], where: Where) -> list[ConfigError]:
    """What has another shape than its key takes; keys that the schema does not know are left."""
    return [error for key, value in tree.items() for error in shape_error(str(key), value, where)]


def shape_error(key: str, value: Any, where: Where) -> Iterator[ConfigError]:
    """As `shape_errors`, of what one dotted key is set to."""
    match schema_keys().get(key):
        case "section" if isinstance(value, Mapping):
            yield from _names(key, value, where)
            for name, inner in value.items():
                yield from shape_error(f"{key}.{name}", inner, where)
        case "section":
            yield _no_section(key, value, where(key))
        case "open":
            yield from _mapping(key, value, where)
        case "value":
            yield from _value(key, value, where)


def _no_section(key: str, value: Any, at: str) -> ConfigError:
    if _is_list(value):
        return ConfigError(
            f"{key} is a section, not a list",
            at=at,
            hint=f"write its keys below `{key.rpartition('.')[2]}:` as `KEY: VALUE`, without `-`"
            " and `[]`",
        )
    option = f", or choose an option in the defaults list: `- override {key}: NAME`"
    return ConfigError(
        f"{key} is a section, not one value: {value!r:.60}",
        at=at,
        hint=f"write its keys below it{'' if '.' in key else option}",
    )


def _mapping(key: str, value: Any, where: Where) -> Iterator[ConfigError]:
    if _is_list(value):
        yield wrong_value(key, value, where(key))
    if not isinstance(value, Mapping):
        return
    (kind,) = (one for one in options_of(type_of(key)) if get_origin(one) is dict)
    takes_any = get_args(kind)[1] is Any
    yield from _names(key, value, where)
    for name, inner in value.items():
        if not takes_any and _is_container(inner):
            yield ConfigError(
                f"{key}.{name} is one value, not a {'list' if _is_list(inner) else 'mapping'}",
                at=where(f"{key}.{name}"),
                hint=f"write `{key.rpartition('.')[2]}: {{{name}: VALUE}}`",
            )


def _names(key: str, value: Mapping[Any, Any], where: Where) -> Iterator[ConfigError]:
    for name in value:
        if not isinstance(name, str):
            yield ConfigError(
                f"{key}: a name in it is a text, not {name!r:.60}",
                at=where(key),
                hint=f'quote it: `"{name}": VALUE`',
            )


def _value(key: str, value: Any, where: Where) -> Iterator[ConfigError]:
    takes_list = any(get_origin(one) is list for one in options_of(type_of(key)))
    if not takes_list:
        if _is_container(value):
            yield wrong_value(key, value, where(key))
    elif isinstance(value, Mapping):
        yield wrong_value(key, value, where(key))
    elif _is_list(value):
        for index, item in enumerate(value):
            if _is_container(item):
                yield wrong_value(f"{key}[{index}]", item, where(f"{key}[{index}]"))


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping) or _is_list(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)
