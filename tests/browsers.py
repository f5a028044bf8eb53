"""What tests of pages in a real browser share."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ViewportSize, sync_playwright

__all__ = ["CLIPPED", "CONTRAST", "DESKTOP", "PHONE", "browser"]

DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
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


# Cells and headings whose text is wider than they are, or that end beyond the page.
CLIPPED = """() => [...document.querySelectorAll('th, td, summary, button, p, h1, h2, pre')]
  .filter(one => one.getBoundingClientRect().width > 0)
  .filter(one => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== 'inline'
    || one.getBoundingClientRect().right > innerWidth + 1)
  .map(one => one.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
    if found is None:
        pytest.fail("Chromium is not installed: apt-get install chromium, for these tests")
    with sync_playwright() as engine:
        started = engine.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()
