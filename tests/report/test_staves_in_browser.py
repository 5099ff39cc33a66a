"""The staves of a report in a real browser: the bar under the player is marked, and they print."""

import re
import zlib
from importlib.util import find_spec

import pytest

from musicgen.midi import Score, Track, notes_from
from musicgen.report import ReportPiece, render_report
from tests.browser import check_access, check_width, needs_browser, opened, wait_until

pytestmark = [
    needs_browser,
    pytest.mark.skipif(find_spec("verovio") is None, reason="needs verovio"),
]
BAR = 4 * 480  # ticks; 2 s at 120 quarters a minute
NUM_BARS = 16
MARKED = """
    () => [...document.querySelectorAll(".staves .now")]
      .filter((each) => each.closest(".system").clientWidth)
      .map((each) => [each.closest(".piece").id, Number(each.dataset.bar) + 1])
"""


PARTS = ("Violin 1", 40, 72), ("Violin 2", 40, 67), ("Viola", 41, 60), ("Cello", 42, 48)


def written(path, num_bars, names=("one", "two")):
    rows = [(480 * i, 480, i % 5, 80) for i in range(4 * num_bars)]
    tracks = [
        Track(
            name,
            program,
            notes=notes_from([(at, length, low + step, 80) for at, length, step, _ in rows]),
        )
        for name, program, low in PARTS
    ]
    pieces = [ReportPiece(name, Score(480, tracks), 3 * BAR, None, {}) for name in names]
    path.write_text(render_report(title="Two", pieces=pieces, metadata={}, with_staves=True))
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return written(tmp_path_factory.mktemp("report") / "report.html", NUM_BARS)


def wait_for_staves(tab):
    wait_until(tab, lambda: tab.locator(".system svg").count())


def colour(tab, selector):
    return tab.locator(selector).first.evaluate("each => getComputedStyle(each).color")


@pytest.mark.parametrize(("width", "colours"), [(1280, "light"), (390, "dark")])
def test_the_bar_under_the_player_is_marked_and_a_click_goes_to_a_bar(width, colours, report):
    with opened(report, width, colours) as tab:
        wait_for_staves(tab)
        assert tab.evaluate(MARKED) == [["piece-0", 1]]
        tab.keyboard.press("c")
        assert tab.evaluate(MARKED) == [["piece-0", 4]]
        tab.keyboard.press("Space")
        wait_until(tab, lambda: tab.evaluate(MARKED) == [["piece-0", 5]])
        tab.keyboard.press("Space")
        tab.evaluate("player.seek(2 * 14)")
        assert tab.evaluate(MARKED) == [["piece-0", 15]]
        mark = tab.locator(".now:visible .bar, .now .bar:visible").first.bounding_box()
        window = tab.locator(".staves").first.bounding_box()
        assert window["y"] <= mark["y"] < window["y"] + window["height"]  # it has scrolled
        shown = "wide" if width > 800 else "narrow"
        second = tab.locator(f"#piece-1 .{shown} [data-bar='1'] .bar")
        second.click(position={"x": 3, "y": 3})
        assert tab.evaluate(MARKED) == [["piece-1", 2]]
        assert round(tab.evaluate("player.position"), 6) == 2
        check_width(tab)


def test_staves_have_a_name_and_can_be_reached(tmp_path):
    with opened(written(tmp_path / "short.html", 4, ["one"])) as tab:
        wait_for_staves(tab)
        check_access(tab)


def test_new_notes_have_the_colour_of_the_rolls_continuation(report):
    with opened(report) as tab:
        wait_for_staves(tab)
        accent = "rgb(154, 74, 0)"
        assert colour(tab, ".wide [data-bar='3'] .new") == accent
        assert colour(tab, ".colours .new") == accent
        assert tab.locator(".wide [data-bar='2'] .new").count() == 0
        assert colour(tab, ".system svg") == "rgb(29, 31, 35)"
        tab.emulate_media(media="print")
        assert colour(tab, ".system svg") == "rgb(0, 0, 0)"
        hidden = ".player, .piece button, .roll, .keys, .contents, .narrow"
        assert tab.locator(hidden).filter(visible=True).count() == 0
        assert tab.locator(".staves").first.evaluate(
            "each => each.scrollHeight <= each.clientHeight"
        )


def painted(pdf):
    """How many shapes are painted on the pages of a PDF file; what is cut is painted on two."""
    streams = re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.S)
    count = 0
    for stream in streams:
        try:
            content = zlib.decompress(stream)
        except zlib.error:
            continue
        count += len(re.findall(rb"\n(?:f|f\*|S)\n", content))
    return len(re.findall(rb"/Type\s*/Page\b", pdf)), count


def test_no_system_is_cut_on_paper(report):
    with opened(report) as tab:
        wait_for_staves(tab)
        num_pages, num_shapes = painted(tab.pdf(width="210mm", height="160mm"))
        assert num_pages > 2
        # Each piece on a page of its own, as long as it needs.
        assert painted(tab.pdf(width="210mm", height="3000mm")) == (2, num_shapes)
