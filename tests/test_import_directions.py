"""Imports point down only: server -> engine -> model -> kernels; of loadgen only the simulator borrows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"server", "engine", "model", "kernels", "configs", "loadgen", "tests", "benchmarks"}
MAY_IMPORT = {
    "kernels": {"kernels"},
    "model": {"model", "kernels"},
    "engine": {"engine", "model", "kernels"},
    "server": {"server", "engine", "model", "kernels", "configs"},
    "configs": {"configs"},
    "loadgen": {"loadgen"},
    "loadgen/simulator": {"loadgen", "engine"},
}


def imported_packages(file: Path) -> Iterator[tuple[int, str]]:
    """(line, our own package) of every import in a file, those inside functions included."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: line {node.lineno} is a relative import"
            names = [node.module or ""]
        else:
            continue
        for name in names:
            package = name.partition(".")[0]
            if package in PACKAGES:
                yield node.lineno, package


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_down(package: str) -> None:
    parts = [ROOT / part for part in MAY_IMPORT if part.startswith(f"{package}/")]
    files = [
        file
        for file in sorted((ROOT / package).rglob("*.py"))
        if not any(file.is_relative_to(part) for part in parts)
    ]
    assert files
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {imported}"
        for file in files
        for line, imported in imported_packages(file)
        if imported not in MAY_IMPORT[package]
    ]
    assert not wrong, "\n".join(wrong)
