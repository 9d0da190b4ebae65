"""requirements.txt, pyproject.toml and what `make setup` made of them agree."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WANTED = [Requirement(line) for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]]
LOCKED = [
    Requirement(line) for line in (ROOT / "requirements.txt").read_text().splitlines() if line[0] != "#"
]


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


@pytest.mark.parametrize("wanted", [wanted for wanted in WANTED if wanted.name != "torch"], ids=str)
def test_each_dependency_has_one_exact_version_within_its_range(wanted):
    locked = [line for line in LOCKED if canonicalize_name(line.name) == canonicalize_name(wanted.name)]
    assert locked, f"{wanted.name} is missing in requirements.txt: run `make lock`"
    for line in locked:
        (exact,) = line.specifier
        assert exact.operator == "=="
        assert exact.version in wanted.specifier, f"{line} is not {wanted}: run `make lock`"


def test_nothing_that_the_exact_versions_need_is_missing_or_too_old():
    """The installation resolves nothing (`--no-deps`), so the file has to be complete."""
    unmet = []
    for line in filter(_applies, LOCKED):
        for text in metadata.requires(line.name) or []:
            needed = Requirement(text)
            if _applies(needed):
                installed = metadata.version(needed.name)
                if not needed.specifier.contains(installed, prereleases=True):
                    unmet.append(f"{line.name} needs {needed}, but {installed} is installed")
    assert not unmet
