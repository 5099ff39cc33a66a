"""Pages in headless Chromium, through Playwright."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PACKAGES = "playwright", "axe_playwright_python"
missing = [name for name in PACKAGES if not find_spec(name)] + ["chromium"] * (not CHROMIUM)
needs_browser = pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


@contextmanager
def opened(file: Path, width: int = 1280, colours: str = "light") -> Iterator[Any]:
    """A page in a browser of its own; it must write nothing to the console and ask for nothing."""
    from playwright.sync_api import sync_playwright

    view = {"viewport": {"width": width, "height": 800}, "color_scheme": colours}
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM) as browser,
    ):
        tab = browser.new_page(**view)
        tab.set_default_timeout(20_000)
        said, asked = [], []
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(file.as_uri())
        yield tab
        assert said == []
        others = {url for url in asked if not url.startswith(("blob:", "data:"))}
        assert others == {file.as_uri()}


def wait_until(tab: Any, condition: Callable[[], object]) -> None:
    """Wait for what a page's worker does; `tab.wait_for_function` may not run code in our pages."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the page has not done it within 20 s"
        tab.wait_for_timeout(50)


def check_access(tab: Any) -> None:
    """axe-core finds nothing, and each control has a name for those who do not see it."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()
    controls = "button", "slider", "spinbutton", "checkbox", "textbox", "link"
    lines = [line.strip(" -") for line in tab.locator("body").aria_snapshot().splitlines()]
    # A line is `slider "Volume": "0.8"`, without the quoted name where there is none.
    assert [line for line in lines if line.partition(":")[0] in controls] == []


def check_width(tab: Any) -> None:
    """The page is as wide as its window: only the piano roll scrolls to the side."""
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def check_controls(tab: Any, width: int, controls: str) -> None:
    """Each control that is shown lies inside the window, once it is scrolled to."""
    for control in tab.locator(controls).all():
        control.scroll_into_view_if_needed()
        box = control.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def num_inked(tab: Any, selector: str = ".roll canvas") -> int:
    """How many pixels of a piano roll have the colour of a note."""
    return tab.locator(selector).first.evaluate(
        """(canvas) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          let count = 0;
          for (let i = 0; i < data.length; i += 4)
            count += Math.max(...data.slice(i, i + 3)) - Math.min(...data.slice(i, i + 3)) > 60;
          return count;
        }"""
    )
