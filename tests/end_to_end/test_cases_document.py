"""docs/cases.md names only tests that exist, and every test of a case."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_and_the_tests_agree() -> None:
    named = set(re.findall(r"`([\w/.]+\.py)::(\w+)`", (ROOT / "docs" / "cases.md").read_text()))
    assert len(named) > 50
    defined = {
        (path.relative_to(ROOT / "tests").as_posix(), name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert named - defined == set()
    cases = {test for test in defined if test[0].startswith("end_to_end/test_case_")}
    assert cases - named == set()
