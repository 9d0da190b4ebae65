"""Imports point down only: server -> engine -> model -> kernels; of loadgen only the simulator borrows."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
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


def imported_modules(file: Path) -> Iterator[tuple[int, str]]:
    """(line, module of ours) of every import in a file, those inside functions included."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: line {node.lineno} is a relative import"
            names = [node.module or ""]
        else:
            continue
        for name in names:
            if name.partition(".")[0] in PACKAGES:
                yield node.lineno, name


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
        for line, imported in imported_modules(file)
        if imported.partition(".")[0] not in MAY_IMPORT[package]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_servers_folders_import_in_one_direction() -> None:
    """A folder counts as one, and so does each file that lies beside them."""
    imports: dict[str, set[str]] = defaultdict(set)
    for file in (ROOT / "server").rglob("*.py"):
        part = file.relative_to(ROOT / "server").parts[0].removesuffix(".py")
        for _, imported in imported_modules(file):
            if imported.startswith("server."):
                imports[part].add(imported.split(".")[1])
    for part, imported_parts in imports.items():
        imported_parts.discard(part)
    TopologicalSorter(imports).prepare()
