"""What the documentation says that can be checked: flags, names, links, commands."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from engine.record import RequestRecord, StepEntry
from server.cli.flags import all_settings
from server.cli.main import COMMANDS
from server.monitoring.metrics import EngineCollector, metrics_registry
from server.protocol.tokenize import TokenizeRequest
from tests.support.fake_engine import FakeEngine

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "loadgen" / "traces" / "samples" / "README.md",
]


def load_generator(name: str) -> ModuleType:
    spec = spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_configuration_page_is_up_to_date() -> None:
    generator = load_generator("generate_configuration")
    page = generator.PAGE.read_text(encoding="utf-8")
    assert generator.updated(page) == page, "run `make docs`"
    for setting in all_settings():
        assert f"| `{setting.flag}` |" in page


def test_the_api_page_is_up_to_date() -> None:
    generator = load_generator("generate_api")
    page = generator.PAGE.read_text(encoding="utf-8")
    assert generator.updated(page) == page, "run `make docs`"
    for model, endpoint in generator.ENDPOINTS:
        assert f"### `{endpoint}`" in page
        if model is not TokenizeRequest:
            assert all(f"| `{field}` |" in page for field in model.model_fields)


def test_the_record_page_names_every_field_and_metric() -> None:
    page = (ROOT / "docs" / "record.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9_]+)`", page))
    assert {field.name for record in (RequestRecord, StepEntry) for field in fields(record)} <= named
    engine = FakeEngine(script=lambda request, index: [0], vocab_size=8)
    try:
        collector = EngineCollector(engine, "octavo", "m", {400: 1})  # type: ignore[arg-type]
        families = [f for f in metrics_registry(collector).collect() if f.name.startswith("octavo:")]
    finally:
        engine.shutdown()
    metrics = {f.name.removeprefix("octavo:") + ("_total" if f.type == "counter" else "") for f in families}
    assert metrics <= named
    assert {name for name in named if name.endswith(("_total", "_seconds"))} <= metrics


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if not target.startswith(("http://", "https://")):
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), target


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    without_code = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    headings = re.findall(r"^#+ (.+)", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_files_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    commands = set(re.findall(r"(?:^\s*|\$ |`|/)octavo ([a-z]+(?:-[a-z]+)*)", text, re.MULTILINE))
    assert commands <= COMMANDS.keys()
    rooms = "server|engine|model|kernels|configs|loadgen|benchmarks|tests|docs"
    for path in re.findall(rf"`((?:{rooms})/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
