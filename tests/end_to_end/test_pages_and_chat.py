"""The pages and `octavo chat` against the real process and the embedded model."""

from __future__ import annotations

import subprocess
import sys

from playwright.sync_api import expect

from tests.support.api import CHAT, answer
from tests.support.browser import chromium
from tests.support.process import ServerProcess

QUESTION = "Name the three primary colours in one sentence."
GREEDY = {"temperature": 0, "max_tokens": 12}


def greedy_answer(server: ServerProcess) -> str:
    body = answer(server, CHAT, {"messages": [{"role": "user", "content": QUESTION}], **GREEDY})
    text: str = body["choices"][0]["message"]["content"]
    assert text
    return text


def test_the_pages_show_an_answer_and_its_request(embedded: ServerProcess) -> None:
    expected = greedy_answer(embedded)
    with chromium() as browser:
        page = browser.new_page()
        expect.set_options(timeout=30_000)
        page.goto(embedded.base_url)
        temperature = page.get_by_label("Temperature")
        expect(temperature).to_have_attribute("placeholder", "0.2")  # as the model's makers have it
        temperature.fill("0")
        page.get_by_label("Max tokens").fill("12")
        page.get_by_label("Message", exact=True).fill(QUESTION)
        page.keyboard.press("Enter")
        expect(page.locator(".figures")).to_contain_text("12 tokens, cut at the limit")
        assert page.locator(".message.assistant .text").inner_text() == expected.strip()

        page.get_by_role("link", name="Live").click()
        cells = page.locator("#requests tr").first.locator("td")
        expect(cells.nth(1)).to_have_text("length")
        newest = embedded.http.get("/debug/requests?limit=1").json()[0]
        shown = cells.all_inner_texts()
        assert shown[0] == newest["request_id"]
        assert shown[3:6] == [
            str(newest[name]) for name in ("num_prompt_tokens", "num_cached_tokens", "num_generated_tokens")
        ]
        expect(page.locator("#blocks-cached")).not_to_have_text("0")
        count = embedded.metric("time_to_first_token_seconds_count")
        expect(page.locator("[data-name=time_to_first_token] td").last).not_to_have_text("0")
        assert int(page.locator("[data-name=time_to_first_token] td").last.inner_text()) <= count


def test_octavo_chat_streams_what_the_api_answers(embedded: ServerProcess) -> None:
    expected = greedy_answer(embedded)
    command = [sys.executable, "-m", "server.cli.main", "chat", "--url", embedded.base_url]
    chat = subprocess.run(
        [*command, "--temperature", "0", "--max-tokens", "12"],
        input=QUESTION, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (chat.returncode, chat.stdout) == (0, expected + "\n")
    assert chat.stderr.startswith("12 tokens, ")
