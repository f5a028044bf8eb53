"""The pages in a real browser: no error, no outside request, nothing that does not fit.

They need Chromium; `make test-browser` runs them, and says how to install it where it is not there.
"""

import re
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, ViewportSize

from codedfedl.report.figures import scheme_colour
from codedfedl.report.html import render_report
from codedfedl.runs.directory import RunDirectory
from codedfedl.simulation.experiment import simulate
from tests.browsers import CLIPPED, CONTRAST, DESKTOP, PHONE, browser
from tests.virtual import small

__all__ = ["browser"]

pytestmark = pytest.mark.browser

SITE = Path(__file__).parent.parent / "build" / "docs"
SCHEMES = [
    {"name": "uncoded"},
    {"name": "coded", "redundancy": 0.2},
    {"name": "one-shot"},
    {"name": "coded-newton", "features": "structured"},
]
# How many settings are shown, by their buttons.
SHOWN = """() => [...document.querySelectorAll('button[data-line]')]
  .filter(one => one.getAttribute('aria-pressed') === 'true').length"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report of one run, of two compared, and of a grid."""
    folder = tmp_path_factory.mktemp("reports")
    runs = []
    for name, erasure in (("good-links", 0.1), ("bad-links", 0.6)):
        experiment = small(
            title="Digits on six clients",
            seeds=[0, 1],
            schemes=SCHEMES,
            fleet={"clients": 6, "erasure": erasure},
            training={"epochs": 20, "step": 2.0, "target": 0.85},
        )
        runs.append(RunDirectory(folder / name))
        simulate(experiment, runs[-1])
    grid = RunDirectory(folder / "grid")
    simulate(
        small(schemes=SCHEMES[:2], grid={"redundancy": [0.1, 0.2], "fleet.k2": [0.5, 0.9]}), grid
    )
    written = {}
    for name, shown in (("one", runs[:1]), ("compared", runs), ("grid", [grid])):
        written[name] = folder / f"{name}.html"
        written[name].write_text(render_report(*shown), "utf-8")
    return written


def opened(
    browser: Browser, path: Path, size: ViewportSize, scheme: Literal["light", "dark"] = "light"
) -> tuple[Page, list[str]]:
    """Open a page, and return what it complained about and what it asked others for."""
    page = browser.new_page(viewport=size, color_scheme=scheme)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url))
    page.goto(path.as_uri(), wait_until="load")
    complaints.remove(path.as_uri())  # itself
    return page, [one for one in complaints if not one.startswith("data:")]


@pytest.mark.parametrize("name", ["one", "compared", "grid"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_loads_fits_and_can_be_read(
    browser: Browser,
    pages: dict[str, Path],
    name: str,
    size: ViewportSize,
    scheme: Literal["light", "dark"],
) -> None:
    page, complaints = opened(browser, pages[name], size, scheme)
    assert complaints == []
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= size["width"]
    figures = page.locator("figure:visible")
    assert figures.count() >= 4
    for place in range(figures.count()):
        frame = figures.nth(place).bounding_box()
        drawing = figures.nth(place).locator("svg, canvas").first.bounding_box()
        assert frame is not None
        assert drawing is not None
        assert frame["x"] + frame["width"] <= size["width"]
        assert drawing["x"] + drawing["width"] <= size["width"]
        assert drawing["width"] > 300
        assert drawing["height"] > 60  # a time line of few clients is low
    assert page.evaluate(CLIPPED) == []
    assert min(page.evaluate(CONTRAST)) > 4.5  # as accessibility asks for
    page.close()


@pytest.mark.parametrize(
    "page_name",
    [
        *("index", "tutorials/plan", "howto/deploy", "explanation/privacy", "results/comparison"),
        *("reference/commands", "reference/schemes", "reference/api-estimators"),
    ],
)
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_docs_need_nobody_else(browser: Browser, page_name: str, size: ViewportSize) -> None:
    path = SITE / f"{page_name}.html"
    assert path.is_file(), "the site is not built: make docs"
    page, complaints = opened(browser, path, size)
    assert [one for one in complaints if not one.startswith("file:")] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    page.close()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_first_screen_says_who_won(
    browser: Browser, pages: dict[str, Path], size: ViewportSize
) -> None:
    page, _ = opened(browser, pages["one"], size)
    for place in (".headline", "tr.win"):
        box = page.locator(place).last.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < size["height"]
    assert "reaches the target first" in page.locator(".headline").last.inner_text()
    page.close()


def test_the_order_of_the_story(browser: Browser, pages: dict[str, Path]) -> None:
    page, _ = opened(browser, pages["one"], DESKTOP)
    assert [heading.split(" ")[:2] for heading in page.locator("h2").all_inner_texts()] == [
        ["Accuracy", "over"],
        ["Clients"],
        ["First", "rounds:"],
        ["Set-up", "time"],
        ["Plan"],
        ["Reproduce", "this"],
    ]
    page.close()


def test_on_paper_nothing_is_folded_away(browser: Browser, pages: dict[str, Path]) -> None:
    page, _ = opened(browser, pages["one"], DESKTOP)
    assert page.locator("pre").bounding_box() is None or not page.locator("pre").is_visible()
    page.emulate_media(media="print")
    box = page.locator("pre").bounding_box()
    assert box is not None
    assert box["height"] > 100
    assert len(page.pdf()) > 20_000
    page.close()


def ink(page: Page, chart: int, colour: str) -> int:
    """Count the pixels of a chart that have a colour."""
    count: int = page.evaluate(
        """([chart, colour]) => {
          const canvas = document.querySelectorAll('[data-chart] canvas')[chart];
          const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
          const wanted = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
          let found = 0;
          for (let i = 0; i < data.length; i += 4)
            found += data[i + 3] > 200 && wanted.every((c, j) => Math.abs(data[i + j] - c) < 4);
          return found;
        }""",
        [chart, colour],
    )
    return count


def hovered(page: Page, chart: int) -> str:
    """Move the pointer over a chart until it shows a value, and return what it shows."""
    over = page.locator("[data-chart] .u-over").nth(chart)
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    tip = over.locator(".tip")
    for across in range(1, 20):
        for down in range(1, 10):
            page.mouse.move(
                box["x"] + box["width"] * across / 20, box["y"] + box["height"] * down / 10
            )
            if tip.is_visible():
                return tip.inner_text()
    pytest.fail("no place of the chart shows a value")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_chart_shows_values_on_hover(
    browser: Browser, pages: dict[str, Path], size: ViewportSize
) -> None:
    page, complaints = opened(browser, pages["one"], size)
    for chart, after in ((0, r"after [\d.,]+ (h|min|s)"), (2, r"after [\d.,]+ rounds")):
        setting, accuracy, when = hovered(page, chart).splitlines()
        assert setting in page.locator("table").first.inner_text()
        assert re.fullmatch(r"\d+\.\d\d%( \(\d+\.\d\d% to \d+\.\d\d%\))?", accuracy)
        assert re.fullmatch(after, when)
    assert complaints == []
    page.close()


def test_a_scheme_toggles_in_all_charts_at_once(browser: Browser, pages: dict[str, Path]) -> None:
    page, complaints = opened(browser, pages["one"], DESKTOP)
    colour = scheme_colour("uncoded")
    before = [ink(page, chart, colour) for chart in range(3)]
    assert min(before) > 50
    button = page.locator("button[data-line]", has_text="uncoded")
    button.click()
    assert [ink(page, chart, colour) for chart in range(3)] == [0, 0, 0]
    assert page.locator("tr.off").count() == 1
    page.locator("button.all").click()
    assert [ink(page, chart, colour) for chart in range(3)] == before
    button.dblclick()  # alone
    assert page.evaluate(SHOWN) == 1
    assert min(ink(page, chart, colour) for chart in range(3)) > 50
    assert complaints == []
    page.close()


def test_tables_sort_by_a_click_or_a_key(browser: Browser, pages: dict[str, Path]) -> None:
    page, complaints = opened(browser, pages["one"], DESKTOP)
    table = page.locator("table").first
    cells = table.locator("tr td:nth-child(2)")
    times = cells.evaluate_all(
        "cells => cells.map(cell => Number(cell.dataset.value || 'Infinity'))"
    )
    assert len(times) == len(SCHEMES)
    assert times == sorted(times)
    heading = table.locator("th", has_text="final")
    column = table.locator("tr td:nth-child(8)")
    heading.click()
    ascending = [number(text) for text in column.all_inner_texts()]
    assert len(ascending) == len(SCHEMES)
    assert ascending == sorted(ascending)
    heading.press("Enter")
    assert [number(text) for text in column.all_inner_texts()] == ascending[::-1]
    assert heading.get_attribute("aria-sort") == "descending"
    assert complaints == []
    page.close()


def number(text: str) -> float:
    """Read a number; a target that was not met comes last."""
    return (
        float("inf") if "met" in text or "of" in text else float(text.strip("%").replace(",", ""))
    )


def test_colours_are_the_schemes_and_dashes_the_runs(
    browser: Browser, pages: dict[str, Path]
) -> None:
    """A scheme has one colour on every page, in every run; each run has a dash of its own."""
    found: dict[str, set[str]] = {}
    for name in ("one", "compared"):
        page, _ = opened(browser, pages[name], DESKTOP)
        for button in page.locator("button[data-line]").all():
            stroke = button.locator("line")
            setting = button.inner_text().partition(" (run")[0]
            found.setdefault(setting, set()).add(str(stroke.get_attribute("stroke")))
            dashed = bool(stroke.get_attribute("stroke-dasharray"))
            assert dashed == ("bad-links" in button.inner_text())
        page.close()
    assert len(found) == len(SCHEMES)
    assert all(len(colours) == 1 for colours in found.values())
    assert len(set.union(*found.values())) == len(SCHEMES)


def test_a_comparison_begins_with_what_differs(browser: Browser, pages: dict[str, Path]) -> None:
    page, _ = opened(browser, pages["compared"], DESKTOP)
    assert page.locator("h2").first.inner_text() == "Configuration changes"
    rows = page.locator("table").first.locator("tr").all_inner_texts()
    assert [row.split() for row in rows] == [
        ["key", "good-links", "bad-links"],
        ["fleet.erasure", "0.1", "0.6"],
    ]
    told = page.locator(".headline").first.inner_text()
    assert re.match(r'Run "bad-links" is \d[\d.]* times slower than run "good-links": ', told)
    changes = page.locator("table").nth(1).locator("tr td:nth-child(6)").all_inner_texts()
    assert [text for text in changes if text]
    assert all(re.fullmatch(r"|same|[\d.,]+× (longer|shorter)|.*met.*", one) for one in changes)
    page.close()


def test_every_time_has_its_unit(browser: Browser, pages: dict[str, Path]) -> None:
    for name in ("one", "grid"):
        page, _ = opened(browser, pages[name], DESKTOP)
        times = page.locator("table").first.locator("tr td:nth-child(2)").all_inner_texts()
        assert times
        assert all(re.fullmatch(r"[\d.,]+ (d|h|min|s|ms)|.*met.*|.* of .*", one) for one in times)
        page.close()


def test_charts_are_on_paper_in_its_ink_and_width(browser: Browser, pages: dict[str, Path]) -> None:
    page, _ = opened(browser, pages["one"], DESKTOP, "dark")
    grid_on_paper = "#d8dee6"
    assert ink(page, 0, grid_on_paper) == 0
    page.set_viewport_size({"width": 700, "height": 900})
    page.emulate_media(media="print")
    for chart in range(3):
        canvas = page.locator("[data-chart] canvas").nth(chart)
        assert canvas.is_visible()
        box, figure = canvas.bounding_box(), page.locator("[data-chart]").nth(chart).bounding_box()
        assert box is not None
        assert figure is not None
        assert 200 < box["width"] <= figure["width"]
        assert ink(page, chart, grid_on_paper) > 50
        assert ink(page, chart, scheme_colour("uncoded")) > 50
    page.close()


def test_the_docs_begin_with_how_to_install_and_run(browser: Browser) -> None:
    page, _ = opened(browser, SITE / "index.html", DESKTOP)
    box = page.locator("pre").first.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < DESKTOP["height"]
    assert "pip install ." in page.locator("pre").first.inner_text()
    assert "codedfedl demo" in page.locator("pre").first.inner_text()
    page.close()


@pytest.mark.parametrize(
    ("words", "page_name"),
    [
        ("missing values", "howto/data"),
        ("timeout", "tutorials/pace-flower"),
        ("straggler", "reference/glossary"),
        ("deep network", "howto/networks"),
    ],
)
def test_the_search_finds_what_people_look_for(
    browser: Browser, words: str, page_name: str
) -> None:
    page = browser.new_page()
    page.goto(f"{(SITE / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
    page.locator(f"#search-results a[href*='{page_name}.html']").first.wait_for(timeout=20_000)
    page.close()


@pytest.mark.parametrize(
    ("name", "formulas"), [("explanation/theory", 8), ("explanation/cold-start", 1)]
)
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_formulas_are_drawn_by_the_browser_alone(
    browser: Browser, name: str, formulas: int, size: ViewportSize
) -> None:
    page, complaints = opened(browser, SITE / f"{name}.html", size)
    drawn = page.locator(".formula math")
    assert drawn.count() == formulas
    for formula in drawn.all():
        box = formula.bounding_box()
        assert box is not None
        assert box["height"] > 20
    assert "\\sum" not in page.locator("article").inner_text()
    assert [one for one in complaints if not one.startswith("file:")] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    page.close()
