"""The live page in a real browser, while the journal behind it grows."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from codedfedl.report.live import LivePage
from tests.browsers import CLIPPED, CONTRAST, DESKTOP, PHONE, browser
from tests.growing import ROUNDS, SETUPS, GrowingRun, finished_run

__all__ = ["browser"]

pytestmark = pytest.mark.browser

SOON = 15_000  # milliseconds until a page shows what is there
MARKS = "td.marks"


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[GrowingRun]:
    run = GrowingRun(finished_run(tmp_path / "source"), tmp_path / "run")
    yield run
    run.lock.close()


@pytest.fixture
def served(growing: GrowingRun) -> Iterator[LivePage]:
    with LivePage(growing.directory, 0) as page:
        yield page


def opened(
    browser: Browser, live: LivePage, size: ViewportSize, scheme: Literal["light", "dark"]
) -> tuple[Page, list[str]]:
    """Open the page; what it complains about, and what it asks others for, is collected."""
    page = browser.new_page(viewport=size, color_scheme=scheme)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((live.address, "data:"))
            else complaints.append(request.url)
        ),
    )
    page.goto(live.address, wait_until="load")
    return page, complaints


def last_round(page: Page) -> str:
    return page.locator("h2:has-text('Rounds') + table tr").last.locator("td").first.inner_text()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_grows_with_the_run_and_ends_as_the_report(
    browser: Browser,
    growing: GrowingRun,
    served: LivePage,
    size: ViewportSize,
    scheme: Literal["light", "dark"],
) -> None:
    page, complaints = opened(browser, served, size, scheme)
    expect(page.locator(".state")).to_contain_text("probe 2 of 2 done")
    growing.set_up()
    expect(page.locator(".state")).to_contain_text(f"exchange {SETUPS - 1} ", timeout=SOON)
    for round_ in range(1, ROUNDS + 1):
        growing.grow()
        exchange = f"exchange {SETUPS + round_ - 1} "
        expect(page.locator(".state")).to_contain_text(exchange, timeout=SOON)
        marks = page.locator(MARKS).first.locator(".mark")
        expect(marks).to_have_count(round_, timeout=SOON)
        assert last_round(page) == str(round_)
        if round_ == 1:
            change_by_hand(page)
        if round_ == 3:
            expect(page.locator("text=Suggested: 11 s")).to_have_count(1)
            assert_it_fits(page, size)
        assert_it_is_as_left(page)
    growing.finish()
    expect(page.locator(".state")).to_have_count(0, timeout=SOON)
    assert_it_is_as_left(page)
    assert_it_fits(page, size)
    served.__exit__(None, None, None)  # as at the end of the command
    asked = len(complaints)
    page.wait_for_timeout(2500)  # more than two looks: it must not ask again
    assert (complaints, asked) == ([], 0)
    page.close()


def change_by_hand(page: Page) -> None:
    """Unfold the configuration, and sort the clients by their seconds, the longest first."""
    page.locator("summary", has_text="Configuration").click()
    heading = page.locator("h2:has-text('Answers by client') ~ table th", has_text="typical").first
    heading.click()
    heading.click()


def assert_it_is_as_left(page: Page) -> None:
    assert page.locator("details:has(summary:text('Configuration'))").get_attribute("open") == ""
    table = page.locator("h2:has-text('Answers by client') ~ table").first
    heading = table.locator("th", has_text="typical")
    assert heading.get_attribute("aria-sort") == "descending"
    texts = table.locator("tr td:nth-child(4)").all_inner_texts()
    seconds = [float(text.split()[-1]) for text in texts if re.search(r"\d", text)]
    assert len(seconds) >= 3
    assert seconds == sorted(seconds, reverse=True)


def assert_it_fits(page: Page, size: ViewportSize) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert page.evaluate(CLIPPED) == []
    assert min(page.evaluate(CONTRAST)) > 4.5
    drawn = page.locator("figure:visible canvas, figure:visible svg")
    assert drawn.count() >= 2
    for place in range(drawn.count()):
        box = drawn.nth(place).bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["x"] + box["width"] <= size["width"]
