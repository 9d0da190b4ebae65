"""The pages' files as the server hands them out; test_pages_in_browser.py has what they do."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import server.pages

FILES = sorted(
    path.name for path in Path(server.pages.__file__).parent.iterdir() if path.suffix not in (".py", "")
)


def test_an_installation_has_all_files() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    assert {f"*{Path(name).suffix}" for name in FILES} <= set(patterns)


def test_both_pages_and_all_that_they_load_are_there(served: Any) -> None:
    assert len(FILES) > 8
    wanted = {"/", "/dashboard"} | {f"/pages/{name}" for name in FILES}
    found = set()
    for path in wanted:
        answer = served.http.get(path)
        assert answer.status_code == 200, path
        found |= {f"/pages/{name}" for name in re.findall(r'"(?:pages|\.)/([\w.]+)"', answer.text)}
    assert found < wanted


@pytest.mark.parametrize("path", ["/", "/dashboard", "/pages/chat.js", "/pages/style.css"])
def test_headers(served: Any, path: str) -> None:
    answer = served.http.get(path)
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = served.http.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["x-request-id"] != answer.headers["x-request-id"]


def test_nothing_comes_from_elsewhere_and_nothing_is_inline(served: Any) -> None:
    for path in ("/", "/dashboard"):
        html = served.http.get(path).text
        assert not re.search(
            r"(src|href)=\"(https?:|/)|<style|style=|\son\w+=|<script(?! type=\"module\" src=)", html
        )


@pytest.mark.parametrize(
    "name", ["__init__.py", "nope.js", "..%2fapp.py", "%2e%2e/app.py", "sub/chat.js", ""]
)
def test_other_files_are_not_there(served: Any, name: str) -> None:
    assert served.http.get(f"/pages/{name}").status_code == 404


def test_the_pages_are_open_and_their_data_is_not(serve: Any) -> None:
    with serve(api_key=("k",)) as served:
        for path in ("/", "/dashboard", "/pages/chat.js"):
            assert served.http.get(path).status_code == 200
        for path in ("/v1/models", "/debug/live"):
            assert served.http.get(path).status_code == 401


def test_no_pages(serve: Any) -> None:
    with serve(pages=False) as served:
        for path in ("/", "/dashboard", "/pages/chat.js"):
            assert served.http.get(path).status_code == 404
        assert served.http.get("/debug/live").status_code == 200
