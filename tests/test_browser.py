"""The pages in a real browser: no error, no outside request, nothing that does not fit.

They need Chromium; `make test-browser` runs them, and says how to install it where it is not there.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from codedfedl.report.html import render_report
from codedfedl.runs.directory import RunDirectory
from codedfedl.simulation.run import simulate
from tests.test_simulate import small

pytestmark = pytest.mark.browser

DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
SCHEMES = [
    {"name": "uncoded"},
    {"name": "coded", "redundancy": 0.2},
    {"name": "one-shot"},
    {"name": "coded-newton", "features": "structured"},
]
# Contrast of two colours as WCAG defines it.
CONTRAST = """() => {
  const light = colour => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const page = light(getComputedStyle(document.body).backgroundColor);
  const inked = document.querySelector('figure svg [style*="currentColor"]');
  const drawn = getComputedStyle(inked);
  const inks = ['body', '.soft', 'th']
    .map(place => getComputedStyle(document.querySelector(place)).color)
    .concat(drawn.stroke === 'none' ? drawn.fill : drawn.stroke);
  return inks.map(light)
    .map(ink => (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05));
}"""


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
    if found is None:
        pytest.fail("Chromium is not installed: apt-get install chromium, for these tests")
    with sync_playwright() as engine:
        started = engine.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


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
    figures = page.locator("figure")
    assert figures.count() >= 4
    for place in range(figures.count()):
        frame = figures.nth(place).bounding_box()
        drawing = figures.nth(place).locator("svg").first.bounding_box()
        assert frame is not None
        assert drawing is not None
        assert frame["x"] + frame["width"] <= size["width"]
        assert min(drawing["width"], drawing["height"]) > 100  # a wide one scrolls in its frame
    assert min(page.evaluate(CONTRAST)) > 4.5  # as accessibility asks for
    page.close()


@pytest.mark.parametrize("page_name", ["index", "tutorials/plan", "commands", "api-estimators"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_docs_need_nobody_else(browser: Browser, page_name: str, size: ViewportSize) -> None:
    path = Path(__file__).parent.parent / "build" / "docs" / f"{page_name}.html"
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
    assert "is first" in page.locator(".headline").last.inner_text()
    page.close()


def test_the_order_of_the_story(browser: Browser, pages: dict[str, Path]) -> None:
    page, _ = opened(browser, pages["one"], DESKTOP)
    assert [heading.split(" ")[:2] for heading in page.locator("h2").all_inner_texts()] == [
        ["Accuracy", "against"],
        ["The", "clients"],
        ["The", "first"],
        ["What", "the"],
        ["The", "plan"],
        ["To", "reproduce"],
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
