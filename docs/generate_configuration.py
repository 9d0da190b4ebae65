"""Writes the tables of docs/configuration.md from the configuration's dataclasses and the presets.

python docs/generate_configuration.py; a test fails while the page is out of date.
"""

from __future__ import annotations

import re
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import configs
from server.cli.flags import Setting, all_settings, shown_default

PAGE = Path(__file__).with_name("configuration.md")


def updated(page: str) -> str:
    """The page with what stands between `<!-- NAME -->` and `<!-- end -->` made anew."""
    for name, content in (("flags", flag_tables()), ("presets", preset_tables())):
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, count = between.subn(lambda match, new=content: f"{match[1]}{new}{match[2]}", page)
        assert count == 1, f"the page has no place for {name}"
    return page


def flag_tables() -> str:
    """One table a group, the groups in the order of `octavo serve --help`."""
    groups = list(dict.fromkeys(setting.group for setting in all_settings()))
    settings = sorted(all_settings(), key=lambda setting: groups.index(setting.group))
    tables = []
    for group, members in groupby(settings, key=attrgetter("group")):
        rows = [
            f"| `{setting.flag}` | {_kind(setting)} | {_default(setting)} | {setting.help_text} |"
            for setting in members
        ]
        tables.append(
            "\n".join(
                [f"### {group}", "", "| flag | value | default | |", "| --- | --- | --- | --- |", *rows]
            )
        )
    return "\n\n".join(tables) + "\n"


def preset_tables() -> str:
    sections = []
    for name in configs.preset_names():
        path = configs.resolve_preset(name)
        sections.append(f"`{name}`\n\n```yaml\n{path.read_text(encoding='utf-8').rstrip()}\n```")
    return "\n\n".join(sections) + "\n"


def _kind(setting: Setting) -> str:
    if setting.choices is not None:
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    kind = {str: "text", int: "integer", float: "number", bool: "on or off"}[setting.value_type]
    return f"{kind}, repeatable" if setting.is_tuple else kind


def _default(setting: Setting) -> str:
    shown = shown_default(setting)
    return shown if shown == "not set" or setting.value_type is bool else f"`{shown}`"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
