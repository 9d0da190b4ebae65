"""The chat page and the live page in a browser, over the fake engine."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from loadgen.client.sse import split_events
from tests.support.browser import Witness, chromium, tab_stops
from tests.support.byte_text import byte_tokenizer
from tests.support.process import wait_until

FIGURES = re.compile(r"First token after \d+\.\d\d s, (\d+\.\d tokens/s, )?\d+ tokens$")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh tab, without anything kept; what it does wrong fails the test."""
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    page.set_default_timeout(10_000)
    expect.set_options(timeout=10_000)
    yield page
    page.context.close()


def ask(page: Page, text: str) -> None:
    """By keyboard alone: the message field has the focus."""
    expect(page.locator("#prompt")).to_be_focused()
    page.keyboard.insert_text(text)
    page.keyboard.press("Enter")


def answers(page: Page) -> Any:
    return page.locator(".message.assistant .text")


def wait_for_end(page: Page) -> None:
    expect(page.locator("#again")).to_be_visible()


def prompt_of(served: Any, index: int = -1) -> str:
    """What the model was asked."""
    return byte_tokenizer().decode(served.engine.submitted[index].prompt_token_ids.tolist())


def test_a_conversation_by_keyboard(page: Page, served: Any) -> None:
    witness = Witness.of(page)
    page.goto(served.url)
    page.get_by_label("System prompt").fill("Be kind.")
    for label, value in (
        ("Temperature", "0.5"), ("Max tokens", "40"), ("Top p", "0.9"), ("Top k", "7"), ("Seed", "3"),
    ):  # fmt: skip
        page.get_by_label(label, exact=True).fill(value)
    page.get_by_label("Stop string").fill("end")
    page.get_by_label("Message", exact=True).focus()
    ask(page, "Grüße, <b>世界</b> 🙂")
    wait_for_end(page)
    expect(answers(page)).to_have_text("Grüße, <b>世界</b> 🙂")
    assert FIGURES.search(page.locator(".figures").inner_text())
    params = served.engine.submitted[-1].params
    assert (params.temperature, params.max_tokens, params.top_p, params.top_k) == (0.5, 40, 0.9, 7)
    assert (params.seed, params.stop) == (3, ("end",))

    ask(page, "More, the end")
    expect(answers(page)).to_have_count(2)
    wait_for_end(page)
    expect(answers(page).last).to_have_text("More, the ")
    said = "[system]Be kind.[user]Grüße, <b>世界</b> 🙂[assistant]Grüße, <b>世界</b> 🙂[user]More, the end"
    assert said in prompt_of(served)

    page.reload()
    expect(answers(page)).to_have_count(2)
    assert page.get_by_label("Temperature").input_value() == "0.5"
    page.get_by_role("button", name="Answer again").press("Enter")
    expect(answers(page).last).to_have_text("More, the ")
    wait_for_end(page)
    assert said in prompt_of(served)

    page.get_by_role("button", name="New chat").press("Enter")
    expect(answers(page)).to_have_count(0)
    expect(page.locator("#prompt")).to_be_focused()
    assert all(url.startswith(served.url) for url in witness.urls)
    assert witness.complaints == []


def test_stopping_keeps_what_came(page: Page, serve: Any) -> None:
    page.set_viewport_size({"width": 1200, "height": 480})  # the end must be scrolled to
    with serve(engine={"step_s": 0.05}) as served:
        page.goto(served.url)
        for press_stop in (
            lambda: page.keyboard.press("Escape"),
            lambda: page.get_by_role("button", name="Stop").press("Enter"),
        ):
            ask(page, "endless " * 20)
            expect(answers(page).last).to_contain_text("endless")
            press_stop()
            wait_for_end(page)
            expect(page.locator(".figures").last).to_contain_text("stopped")
            assert len(answers(page).last.inner_text()) < 150
            expect(page.locator(".figures").last).to_be_in_viewport()
            expect(page.locator("#prompt")).to_be_focused()
        assert "[assistant]endless" in prompt_of(served), "a stopped answer is part of the conversation"


def test_errors_are_readable_and_the_next_message_works(page: Page, serve: Any) -> None:
    with serve() as served:
        page.goto(served.url)
        alert = page.get_by_role("alert")
        ask(page, "x" * 600)
        expect(alert).to_contain_text("context")
        expect(answers(page)).to_have_count(0)
        page.get_by_role("button", name="New chat").click()
        ask(page, "short")
        wait_for_end(page)
        expect(answers(page)).to_have_text("short")
        expect(alert).to_be_hidden()

        served.engine.paused.set()
        ask(page, "broken off")
        expect(page.locator("[aria-busy=true]")).to_be_visible()
        wait_until(lambda: served.engine.num_running > 0, 10)  # the page is busy before the engine is
        served.engine.fail_requests()
        expect(alert).to_contain_text("internal error")
        served.engine.paused.clear()
    ask(page, "anybody?")
    expect(alert).to_have_text("The server does not answer. Is it still running?")


def test_the_key_is_asked_for_and_kept_in_the_tab(page: Page, serve: Any) -> None:
    with serve(api_key=("sesame",)) as served:
        page.goto(served.url)
        alert = page.get_by_role("alert")
        expect(alert).to_have_text("This server wants an API key. Enter it at the top of the page.")
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        expect(alert).to_contain_text("does not accept this API key")
        page.get_by_label("API key").fill("sesame")
        page.keyboard.press("Enter")
        expect(alert).to_be_hidden()
        expect(page.get_by_label("Model")).to_have_value("test-model")
        page.get_by_role("link", name="Live").click()
        expect(page.locator("#status")).to_have_text("Live")
        assert page.evaluate("sessionStorage.getItem('octavo.key')") == "sesame"
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        assert "sesame" not in page.url


def test_the_live_page_shows_what_the_server_tells(page: Page, served: Any) -> None:
    witness = Witness.of(page)
    served.engine.paused.set()
    body = {"prompt": "a", "n": 3, "max_tokens": 5}
    request = threading.Thread(target=lambda: served.http.post("/v1/completions", json=body))
    request.start()
    page.goto(f"{served.url}/dashboard")
    expect(page.locator("#running")).to_have_text("3")
    live = served.http.get("/debug/live").json()
    expect(page.locator("#blocks-used")).to_have_text(str(live["blocks"]["num_used"]))
    expect(page.locator("#blocks-cached")).to_have_text(str(live["blocks"]["num_cached"]))
    expect(page.locator("#blocks-empty")).to_have_text("94")
    expect(page.locator("#requests tr").first).to_contain_text(live["requests"][0]["request_id"])
    colours = page.evaluate(
        """() => {
            const canvas = document.getElementById("block-map"), context = canvas.getContext("2d");
            const image = context.getImageData(0, 0, canvas.width, canvas.height);
            const pixels = new Uint32Array(image.data.buffer);
            const counts = {};
            for (const pixel of pixels) if (pixel) counts[pixel] = (counts[pixel] ?? 0) + 1;
            return Object.values(counts).sort((a, b) => a - b);
        }"""
    )
    assert colours[0] == colours[1] and colours[2] / colours[0] == 94 / 3, "a square for each block"
    served.engine.paused.clear()
    request.join()
    expect(page.locator("#running")).to_have_text("0")
    page.get_by_role("button", name="Pause").press("Enter")
    expect(page.locator("#status")).to_have_text("Paused")
    num_calls = len(witness.urls)
    page.wait_for_timeout(1200)
    assert len(witness.urls) == num_calls
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("Live")
    assert all(url.startswith(served.url) for url in witness.urls)
    assert witness.complaints == []


def test_the_live_page_tells_why_it_shows_nothing(page: Page, serve: Any) -> None:
    with serve(enable_debug_routes=False) as served:
        page.goto(f"{served.url}/dashboard")
        expect(page.locator("#status")).to_contain_text("--no-enable-debug-routes")
    with serve(api_key=("k",)) as served:
        page.goto(f"{served.url}/dashboard")
        expect(page.locator("#status")).to_contain_text("wants an API key")
    expect(page.locator("#status")).to_have_text("The server does not answer. Is it still running?")


def test_tab_goes_through_each_page_in_reading_order(page: Page, served: Any) -> None:
    page.goto(served.url)
    ask(page, "hello")
    wait_for_end(page)
    settings = ["model", "system", "temperature", "max_tokens", "top_p", "top_k", "seed", "stop"]
    assert tab_stops(page) == [
        *("Skip to the message field", "Chat", "Live", "key", "Settings", *settings),
        *("new-chat", "scroller", "prompt", "send", "again"),
    ]
    page.goto(f"{served.url}/dashboard")
    expect(page.locator("#status")).to_have_text("Live")
    assert tab_stops(page)[:5] == ["Skip to the figures", "Chat", "Live", "key", "pause"]


def test_what_axe_and_a_phone_ask_for(page: Page, served: Any) -> None:
    """Labels, roles, headings, contrast: the rules of axe-core. An answer, an error and a table are shown."""
    page.goto(served.url)
    ask(page, "hello")
    wait_for_end(page)
    ask(page, "x" * 600)
    expect(page.get_by_role("alert")).to_be_visible()
    check_with_axe(page)
    page.goto(f"{served.url}/dashboard")
    expect(page.locator("#status")).to_have_text("Live")
    check_with_axe(page)


def check_with_axe(page: Page) -> None:
    """All rules in the light scheme, and those of colours in the dark one. On a phone nothing sticks out."""
    page.emulate_media(color_scheme="light")
    violations = Axe().run(page).response["violations"]
    page.emulate_media(color_scheme="dark")
    violations += Axe().run(page, options={"runOnly": ["color-contrast"]}).response["violations"]
    assert violations == []
    page.set_viewport_size({"width": 360, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_stream_is_read_alike_however_it_is_cut(page: Page, served: Any) -> None:
    rng = random.Random(0)
    pieces = ["data: a", "data:b\u2028", "data", ": c", "event: x", "d\u00e9", "", "\n", "\r", "\r\n"]
    streams = ["".join(rng.choices(pieces, k=rng.randint(1, 30))) + "\n\n" for _ in range(300)]
    cuts = [sorted(rng.sample(range(len(s) + 1), min(len(s), rng.randint(0, 6)))) for s in streams]
    page.goto(f"{served.url}/health")  # any page of the server's
    read = page.evaluate(
        """async ([streams, cuts]) => {
            const { EventParser } = await import("/pages/sse.js");
            return streams.map((stream, i) => {
                const parser = new EventParser();
                const edges = [0, ...cuts[i], stream.length];
                return edges.slice(1).flatMap((end, j) => parser.feed(stream.slice(edges[j], end)));
            });
        }""",
        [streams, cuts],
    )
    assert read == [[data.decode() for data, _ in split_events(s.encode())] for s in streams]


def test_a_screen_reader_hears_whole_sentences_now_and_then(page: Page, served: Any) -> None:
    page.clock.install()
    page.goto(f"{served.url}/health")
    page.evaluate(
        """async () => {
            const { Announcer } = await import("/pages/announcer.js");
            const region = document.createElement("p");
            window.heard = [];
            new MutationObserver(() => heard.push(region.textContent)).observe(region, {childList: true});
            window.announcer = new Announcer(region);
        }"""
    )
    text = "One sentence is here. " * 40 + "And an unfinished"
    for i in range(0, len(text), 30):  # 10 tokens of 3 characters, at 30 tokens a second
        page.evaluate("text => announcer.add(text)", text[i : i + 30])
        page.clock.run_for(333)
    page.evaluate("announcer.finish('End of the answer.')")
    heard = page.evaluate("heard")
    assert 2 <= len(heard) <= 5
    assert all(part.endswith((".", ":")) for part in heard)
    assert " ".join(heard) == f"{text} End of the answer."
