"""The page of a report in a real browser: it plays, mutes and jumps."""

import pytest

from musicgen.midi import Score, Track, notes_from
from musicgen.report import Kept, ReportPiece, render_report
from tests.browser import (
    check_access,
    check_controls,
    check_width,
    needs_browser,
    num_inked,
    opened,
)

pytestmark = needs_browser
BAR = 4 * 480  # ticks; 2 s at 120 quarters a minute
# The loudest sample in so many seconds of the player's own clock, which may begin late.
LOUDEST = """
    async (seconds) => {
      const { context, master } = player.synth;
      const ear = new AnalyserNode(context);
      master.connect(ear);
      const samples = new Float32Array(ear.fftSize);
      let loudest = 0;
      for (const end = context.currentTime + seconds; context.currentTime < end; ) {
        await new Promise((resolve) => setTimeout(resolve, 10));
        ear.getFloatTimeDomainData(samples);
        loudest = samples.reduce((most, each) => Math.max(most, Math.abs(each)), loudest);
      }
      return loudest;
    }
"""

# The words above the roll of the piece that is selected.
SECTIONS = """
    async () => {
      const twoFrames = () =>
        new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
      await twoFrames(); // the other rolls are drawn
      const { prototype } = CanvasRenderingContext2D;
      const { fillText } = prototype;
      const words = [];
      prototype.fillText = (text) => words.push(text);
      player.card.roll.redraw();
      await twoFrames();
      prototype.fillText = fillText;
      return words.filter((text) => ["Prompt", "Continuation", "Gap", "Kept"].includes(text));
    }
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    lead = [(BAR // 2 * i, BAR // 2, 60 + i, 100) for i in range(12)]
    low = [(BAR * i, BAR, 40 + i, 100) for i in range(6)]
    tracks = [Track("Lead", 73, notes=notes_from(lead)), Track("Low", 48, notes=notes_from(low))]
    score = Score(480, tracks)
    pieces = [ReportPiece(name, score, 3 * BAR, f"{name}.mid", {}) for name in ("one", "two")]
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(render_report(title="Two", pieces=pieces, metadata={"seed": 1}))
    return file


def position(tab) -> float:
    return round(tab.evaluate("player.position"), 6)


def is_silent(tab) -> bool:
    tab.evaluate(LOUDEST, 0.5)  # until the sound has died away
    return tab.evaluate(LOUDEST, 0.2) < 1e-3


def test_a_report_plays_mutes_and_jumps(report):
    with opened(report) as tab:

        def button(name):
            return tab.get_by_role("button", name=name, exact=True)

        button("Play one").click()
        assert button("Pause one").is_visible()
        assert tab.evaluate(LOUDEST, 0.4) > 0.01
        assert 0.2 < position(tab) < 6
        first = tab.locator(".piece").first
        for part in ("Lead", "Low"):
            first.get_by_role("button", name=f"Mute {part}", exact=True).click()
        assert is_silent(tab)
        first.get_by_role("button", name="Mute Low", exact=True).click()
        assert tab.evaluate(LOUDEST, 0.4) > 0.01
        button("Pause one").click()
        stopped = position(tab)
        assert is_silent(tab)
        assert position(tab) == stopped
        button("Jump to the continuation").click()
        assert position(tab) == 6
        assert tab.locator("#clock").inner_text() == "bar 4 · 0:06 / 0:12"
        button("Play the continuation of two").click()
        assert button("Pause two").is_visible()
        assert position(tab) >= 6
        assert tab.locator("#now").inner_text() == "two"


def test_a_report_obeys_the_keyboard(report):
    with opened(report) as tab:
        key = tab.keyboard.press
        key("c")
        assert position(tab) == 6
        key("ArrowRight")
        assert position(tab) == 8
        key("ArrowLeft")
        assert position(tab) == 6
        key("n")
        assert tab.locator("#now").inner_text() == "two"
        assert position(tab) == 0
        key("p")
        assert tab.locator("#now").inner_text() == "one"
        key("Space")
        assert tab.locator("#play").get_attribute("aria-label") == "Pause"
        key("Space")
        assert tab.locator("#play").get_attribute("aria-label") == "Play"


def test_the_position_follows_a_click_on_the_roll(report):
    with opened(report) as tab:
        box = tab.locator(".roll canvas").first.bounding_box()
        tab.mouse.click(box["x"] + (58 + box["width"]) / 2, box["y"] + box["height"] / 2)
        assert position(tab) == pytest.approx(6, abs=0.3)


def test_what_is_kept_behind_a_gap_is_no_continuation(tmp_path):
    notes = notes_from([(BAR // 2 * i, BAR // 2, 60 + i, 100) for i in range(12)])
    score = Score(480, [Track("Lead", 73, notes=notes)])
    file = tmp_path / "report.html"
    pieces = [
        ReportPiece(f"from {first}", score, first, None, {}, kept=Kept(Score(), 4 * BAR))
        for first in (3 * BAR, 0)
    ]
    file.write_text(render_report(title="Gaps", pieces=pieces, metadata={}))
    with opened(file) as tab:
        assert tab.evaluate(SECTIONS) == ["Prompt", "Gap", "Kept"]
        tab.get_by_role("button", name="Play the gap of from 5760", exact=True).click()
        assert 6 <= position(tab) < 8
        tab.locator("#play").click()
        assert tab.locator("#loop").inner_text() == "Loop gap"
        assert tab.evaluate("player.card.loopSpan") == pytest.approx({"from": 6, "to": 8})
        tab.keyboard.press("n")
        assert tab.evaluate("player.card.loopSpan") == pytest.approx({"from": 0, "to": 8})
        assert tab.evaluate(SECTIONS) == ["Gap", "Kept"]


@pytest.mark.parametrize(("width", "colours"), [(1280, "light"), (390, "dark")])
def test_all_of_a_report_has_names_and_room(width, colours, report):
    with opened(report, width, colours) as tab:
        check_access(tab)
        check_width(tab)
        assert num_inked(tab) > 1_000
        check_controls(tab, width, "button:visible, input:visible, a:visible")
