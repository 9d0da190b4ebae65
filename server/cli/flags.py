"""Flags of `octavo serve`, made from the fields of the configuration's dataclasses, and the YAML of --config.

A flag and a YAML key are one thing: a dataclass field made by `engine.config.flag`. A flag beats the file.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from configs import PresetError, load_preset, preset_names, resolve_preset
from engine.config import ConfigError, EngineConfig
from server.config import ServerConfig

CONFIG_CLASSES = (EngineConfig, ServerConfig)
API_KEY_VARIABLE = "OCTAVO_API_KEY"


class Setting(NamedTuple):
    """One field of a configuration class, with its type taken apart."""

    name: str
    value_type: type  # str, int, float or bool: of the value, or of each item
    is_optional: bool
    is_tuple: bool
    choices: tuple[str, ...] | None
    default: Any
    help_text: str
    group: str
    short: str | None

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def settings_of(config_class: type) -> list[Setting]:
    hints = get_type_hints(config_class)
    return [_setting(field, hints[field.name]) for field in fields(config_class)]


def _setting(field: Field[Any], hint: Any) -> Setting:
    is_optional = get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)
    if is_optional:
        (hint,) = (arg for arg in get_args(hint) if arg is not NoneType)
    is_tuple = get_origin(hint) is tuple
    if is_tuple:
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        hint = str
    assert field.default is not MISSING, f"{field.name} has no default"
    meta = field.metadata
    return Setting(
        field.name,
        hint,
        is_optional,
        is_tuple,
        meta["choices"],
        field.default,
        meta["help"],
        meta["group"],
        meta["short"],
    )


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for each setting, grouped. Flags not given leave nothing in the namespace."""
    parser.add_argument(
        "--config",
        metavar="NAME_OR_PATH",
        help=f"YAML file that may hold every flag below; flags beat it. Presets: {', '.join(preset_names())}",
    )
    groups: dict[str, Any] = {}
    for setting in all_settings():
        if setting.group not in groups:
            groups[setting.group] = parser.add_argument_group(setting.group)
        names = filter(None, (setting.flag, setting.short))
        groups[setting.group].add_argument(*names, **_argument_options(setting))


def _argument_options(setting: Setting) -> dict[str, Any]:
    options: dict[str, Any] = {
        "dest": setting.name,
        "default": argparse.SUPPRESS,
        "help": f"{setting.help_text} (default: {shown_default(setting)})".replace("%", "%%"),
    }
    if setting.value_type is bool:
        return options | {"action": argparse.BooleanOptionalAction}
    options |= {"type": setting.value_type, "choices": setting.choices}
    if setting.choices is None:
        options["metavar"] = {str: "TEXT", int: "N", float: "X"}[setting.value_type]
    if setting.is_tuple:
        options["action"] = "append"
        options["help"] = options["help"].replace(" (default", ", repeatable (default", 1)
    return options


def shown_default(setting: Setting) -> str:
    """As help and documentation name it."""
    if setting.value_type is bool:
        return "on" if setting.default else "off"
    if setting.default in (None, (), ""):
        return "not set"
    return str(setting.default)


def build_configs(arguments: argparse.Namespace) -> tuple[EngineConfig, ServerConfig]:
    """The configuration of flags over the file over the defaults. Raises `ConfigError`."""
    values: dict[str, Any] = {}
    if os.environ.get(API_KEY_VARIABLE):
        values["api_key"] = (os.environ[API_KEY_VARIABLE],)
    if arguments.config is not None:
        values |= _file_values(arguments.config)
    given = vars(arguments)
    for setting in all_settings():
        if setting.name in given:
            value = given[setting.name]
            values[setting.name] = tuple(value) if setting.is_tuple else value
    engine_config, server_config = (_build(config_class, values) for config_class in CONFIG_CLASSES)
    return engine_config, server_config


def _build(config_class: type, values: Mapping[str, Any]) -> Any:
    names = {setting.name for setting in settings_of(config_class)}
    return config_class(**{name: value for name, value in values.items() if name in names})


def _file_values(name_or_path: str) -> dict[str, Any]:
    settings = {setting.name: setting for setting in all_settings()}
    try:
        path = resolve_preset(name_or_path)
        content = load_preset(path)
    except PresetError as error:
        raise ConfigError(str(error)) from None
    for key in content:
        if key not in settings:
            raise ConfigError(f"{path}: unknown key {key!r}")
    return {key: _checked(settings[key], value, str(path)) for key, value in content.items()}


def _checked(setting: Setting, value: Any, path: str) -> Any:
    """A YAML value as the field's type; a tuple may stand as one value. Raises `ConfigError`."""
    if setting.is_tuple:
        items = value if isinstance(value, list) else [value]
        return tuple(_checked(setting._replace(is_tuple=False), item, path) for item in items)
    if value is None and setting.is_optional:
        return None
    if setting.value_type is float and type(value) is int:
        return float(value)
    if type(value) is not setting.value_type:
        raise ConfigError(
            f"{path}: {setting.name} must be {_type_name(setting)}, not {value!r} ({type(value).__name__})"
        )
    if setting.choices is not None and value not in setting.choices:
        raise ConfigError(
            f"{path}: {setting.name} must be one of {', '.join(setting.choices)}, not {value!r}"
        )
    return value


def _type_name(setting: Setting) -> str:
    names: dict[type, str] = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
    return names[setting.value_type]


def all_settings() -> list[Setting]:
    return [setting for config_class in CONFIG_CLASSES for setting in settings_of(config_class)]
