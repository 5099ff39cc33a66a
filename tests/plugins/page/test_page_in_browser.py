"""The composing page in a real browser: what somebody does with it, by mouse and by keyboard."""

import base64
import re

import pytest

import musicgen
from musicgen.midi import Score, Track, loads, notes_from, write
from tests.browser import (
    check_access,
    check_controls,
    check_width,
    needs_browser,
    num_inked,
    opened,
    wait_until,
)

pytestmark = needs_browser
MODELS = "songs-small", "bach-chorales"
# Notes of the roll by track, without empty tracks, which MIDI files lose.
SHOWN = """
    page.roll.score.tracks.map((_, i) => page.roll.score.notes.filter(({ track }) => track === i))
      .filter((notes) => notes.length).map((notes) =>
        notes.map(({ onset, end, pitch, velocity }) => [onset, pitch, end - onset, velocity]))
"""
TUNE = [(480 * i, 480, pitch, 80) for i, pitch in enumerate((60, 64, 67, 64, 65, 62, 67, 59))]
FOCUSED = "document.activeElement.id"
BASS = [(1_920 * i, 1_920, pitch, 70) for i, pitch in enumerate((48, 43))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The pages, each written when first needed, and a tune."""
    folder = tmp_path_factory.mktemp("pages")
    tracks = [Track("Soprano", notes=notes_from(TUNE)), Track("Bass", 32, notes=notes_from(BASS))]
    write(Score(480, tracks), folder / "tune.mid")
    return folder


def page_of(name, folder):
    if not (file := folder / f"{name}.html").exists():
        musicgen.load(name).save_page(file)
    return file


def wait_for(tab, status):
    """Wait until the line under the title says this."""
    from playwright.sync_api import expect

    expect(tab.locator("#status")).to_have_text(re.compile(status), timeout=20_000)


def wait_until_ready(tab):
    tab.wait_for_selector("#continue:enabled")


def drop(tab, file):
    """Drop a file on the page, as from a folder."""
    content = base64.b64encode(file.read_bytes()).decode()
    data = tab.evaluate_handle(
        """([name, content]) => {
          const data = new DataTransfer();
          const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt());
          data.items.add(new File([bytes], name));
          return data;
        }""",
        [file.name, content],
    )
    wait_until_ready(tab)
    for kind in ("dragenter", "dragover", "drop"):
        tab.dispatch_event("body", kind, {"dataTransfer": data})


def shown(tab) -> list[list[list[int]]]:
    return [sorted(notes) for notes in tab.evaluate(SHOWN)]


def wait_for_notes(tab, number):
    """Wait until the page's worker has written so many notes."""
    wait_until(tab, lambda: sum(map(len, shown(tab))) >= number)


def saved(tab, press) -> tuple[str, list[list[list[int]]]]:
    """The name of the file that the page saves, and its notes as `shown` has them."""
    with tab.expect_download() as download:
        press()
    tracks = loads(download.value.path().read_bytes()).tracks
    columns = ["onset", "pitch", "duration", "velocity"]
    notes = [sorted(map(list, track.notes[columns].tolist())) for track in tracks]
    return download.value.suggested_filename, [each for each in notes if each]


@pytest.mark.parametrize("name", MODELS)
def test_a_dropped_file_is_continued_undone_and_saved_as_shown(name, folder):
    with opened(page_of(name, folder)) as tab:

        def button(name):
            return tab.get_by_role("button", name=name)

        tab.get_by_label("Bars to add").fill("2")
        drop(tab, folder / "tune.mid")
        wait_for(tab, "^2 bars. Press Continue.$")
        begun = shown(tab)
        assert [(onset, pitch) for onset, pitch, _, _ in begun[0]] == [(n[0], n[2]) for n in TUNE]
        button("Continue").click()
        wait_for(tab, "tokens a second")
        continued = shown(tab)
        assert sum(map(len, continued)) > 10
        assert max(onset for notes in continued for onset, *_ in notes) >= 2 * 1_920
        assert tab.locator("#summary").inner_text().startswith("4 bars, ")
        assert num_inked(tab) > 1_000
        assert saved(tab, button("Save MIDI").click) == ("tune.mid", continued)
        button("Undo").click()
        wait_for(tab, "^$")
        assert tab.locator("#summary").inner_text() == "2 bars, 10 notes"
        assert shown(tab) == begun
        assert saved(tab, button("Save MIDI").click) == ("tune.mid", begun)


def test_the_keyboard_is_enough(folder):
    with opened(page_of("songs-small", folder)) as tab:
        key = tab.keyboard.press

        def go_to(name):
            """Press Tab until a control has the focus."""
            for _ in range(60):
                if tab.evaluate(FOCUSED) == name:
                    return
                key("Tab")
            raise AssertionError(f"no way to {name}")

        tab.on(
            "filechooser", lambda chooser: None
        )  # Playwright begins to watch, which takes a while
        wait_until_ready(tab)
        go_to("file")
        with tab.expect_file_chooser() as chooser:
            key("Enter")
        chooser.value.set_files(folder / "tune.mid")
        wait_for(tab, "Press Continue")
        go_to("bars")
        key("ControlOrMeta+A")
        tab.keyboard.type("1")
        go_to("continue")
        key("Enter")
        wait_for(tab, "tokens a second")
        assert tab.locator("#summary").inner_text().startswith("3 bars, ")
        go_to("stop")  # what is new plays by itself
        key("Enter")
        go_to("play")

        def label():
            return tab.locator("#play").get_attribute("aria-label")

        assert label() == "Play"
        key("Space")
        assert label() == "Pause"
        key("Space")
        assert label() == "Play"
        key("ControlOrMeta+z")
        wait_for(tab, "^$")
        assert tab.locator("#summary").inner_text() == "2 bars, 10 notes"
        go_to("save")
        assert saved(tab, lambda: key("Enter")) == ("tune.mid", shown(tab))
        go_to("clear")
        key("Enter")
        tab.wait_for_selector("#summary:text-is('No music yet')")
        assert shown(tab) == []
        for letter in "adg":  # the keys of a piano: C, E, G
            tab.keyboard.down(letter)
            tab.keyboard.up(letter)
        wait_for(tab, "quarters a minute. Play on")
        wait_for_notes(tab, 3)
        assert sorted({pitch for notes in shown(tab) for _, pitch, *_ in notes}) == [60, 64, 67]


@pytest.mark.parametrize(("width", "colours"), [(1280, "light"), (390, "dark")])
def test_all_controls_have_names_and_room(width, colours, folder):
    with opened(page_of("songs-small", folder), width, colours) as tab:
        drop(tab, folder / "tune.mid")
        wait_for(tab, "Press Continue")
        check_access(tab)
        check_width(tab)
        assert num_inked(tab) > 500
        check_controls(tab, width, "button:visible, input:visible")


def test_what_is_no_music_leaves_the_piece_and_says_so(folder, tmp_path):
    (tmp_path / "no.mid").write_text("no music")
    with opened(page_of("songs-small", folder)) as tab:
        drop(tab, folder / "tune.mid")
        wait_for(tab, "Press Continue")
        drop(tab, tmp_path / "no.mid")
        wait_for(tab, "MIDI")
        assert tab.locator("#status.notice").is_visible()
        assert tab.locator("#summary").inner_text() == "2 bars, 10 notes"
