"""Bars and parts that somebody selects on the page are written anew, in takes."""

import base64

import pytest

from musicgen.composer import compose_song
from musicgen.midi import Track, loads, notes_from, write
from musicgen.plugins.page import document
from tests.browser import (
    check_access,
    check_controls,
    check_width,
    needs_browser,
    opened,
    wait_until,
)
from tests.generation.builders import music_model
from tests.plugins.page.test_gaps import GAPS
from tests.plugins.page.test_page_in_browser import drop, shown, wait_for
from tests.tokenizers import frozen_tokenizers

pytestmark = needs_browser
FILE = "song.mid"
FIRST, END = 2 * 1_920, 4 * 1_920  # of bars 3 and 4
DONE = "keep one"


def uniform_step(model, lag_bias=()):
    """In place of a compiled model: all tokens are equally probable."""
    names = model.coordinate_names
    buffers = [["i", 1], ["i", len(names)], ["f", model.head.out_features]]
    inputs = {"tokens": 0, "positions": 1, "logits": 2}
    layout = {"buffers": buffers, "inputs": inputs, "states": [], "coordinates": names}
    return "() => () => {}", layout, b""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages of songs with gaps and of chorales, and a song."""
    folder = tmp_path_factory.mktemp("pages")
    tokenizers = {"songs": GAPS, "chorale": frozen_tokenizers()["chorale"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document, "javascript_step", uniform_step)
        for name, tokenizer in tokenizers.items():
            model = music_model(tokenizer)
            model.content.describe = str
            model.save_page(folder / f"{name}.html")
    song = compose_song(5, 0).clip(0, 8 * 1_920)
    bass = notes_from([(960 * i, 900, 36 + 5 * (i % 2), 70) for i in range(16)])
    song.tracks.append(Track("Bass", 33, notes=bass))
    write(song, folder / FILE)
    return folder


@pytest.fixture
def song(folder):
    """The page with the song."""
    with opened(folder / "songs.html") as tab:
        drop(tab, folder / FILE)
        wait_for(tab, "Press Continue")
        yield tab


def button(tab, name):
    return tab.get_by_role("button", name=name, exact=True)


def by_part(tab):
    """Notes of the saved file by the name of their track."""
    with tab.expect_download() as download:
        button(tab, "Save MIDI").click()
    tracks = loads(download.value.path().read_bytes()).tracks
    return {track.name: sorted(map(tuple, track.notes.tolist())) for track in tracks}


def outside(notes, names=None):
    """The notes of some parts, by default all, that do not begin in bars 3 and 4; all of others."""
    return {
        name: [n for n in rows if not (FIRST <= n[0] < END and (names is None or name in names))]
        for name, rows in notes.items()
    }


def test_bars_are_written_in_three_takes_one_is_kept_and_undone(song):
    before = by_part(song)
    song.get_by_label("First bar to rewrite").fill("3")
    song.get_by_label("Last bar to rewrite").fill("4")
    song.keyboard.press("Tab")
    assert song.locator("#selected").inner_text().startswith("Bars 3–4: ")
    button(song, "Rewrite").click()
    wait_for(song, DONE)
    original, takes = shown(song), []
    for number in (1, 2, 3):
        take = button(song, f"Take {number}")
        take.click()
        assert take.get_attribute("aria-pressed") == "true"
        assert button(song, "Save MIDI").is_disabled()
        assert song.locator("#play").get_attribute("aria-label") == "Pause"
        takes.append(shown(song))
    assert len({str(each) for each in (original, *takes)}) == 4
    button(song, "As it was").click()
    assert shown(song) == original
    button(song, "Take 2").click()
    button(song, "Keep this take").click()
    wait_for(song, "Take 2 is kept")
    song.wait_for_selector("#takes", state="hidden")
    assert shown(song) == takes[1]
    after = by_part(song)
    assert outside(after) == outside(before)
    assert after != before
    button(song, "Undo").click()
    wait_for(song, "^$")
    assert by_part(song) == before


def test_bars_are_dragged_parts_are_clicked_and_a_lock_holds(song):
    before = by_part(song)
    ruler = song.locator(".ruler")
    box, per_tick = ruler.bounding_box(), song.evaluate("page.roll.pixelsPerTick")
    at = [(box["x"] + (tick + 100) * per_tick, box["y"] + 5) for tick in (FIRST, END - 1_000)]
    song.mouse.move(*at[1])
    song.mouse.down()
    song.mouse.move(*at[0], steps=4)
    song.mouse.up()
    fields = [
        song.get_by_label(f"{name} bar to rewrite").input_value() for name in ("First", "Last")
    ]
    assert fields == ["3", "4"]
    assert song.evaluate("page.player.position") == 0  # the player stays where it is
    button(song, "Lock Piano").click()
    assert song.locator("#selected").inner_text() == "Bars 3–4: Voice, Bass"
    assert button(song, "Piano").is_disabled()
    assert button(song, "Accompany").is_disabled()
    button(song, "Bass").click()
    button(song, "Strings").click()  # which the song has not
    assert song.locator("#selected").inner_text() == "Bars 3–4: Bass, Strings"
    button(song, "Rewrite").click()
    wait_for(song, DONE)
    button(song, "Take 1").click()
    button(song, "Keep this take").click()
    song.wait_for_selector("#takes", state="hidden")
    after = by_part(song)
    names = ["Bass", "Strings"]
    assert {"Strings": [], **outside(after, names)} == {"Strings": [], **outside(before, names)}
    assert after["Bass"] != before["Bass"]
    ruler.click(position={"x": 5, "y": 5})
    ruler.click(position={"x": 5, "y": 5})  # the same bar again: none
    assert song.get_by_label("First bar to rewrite").input_value() == ""


def test_the_keyboard_is_enough_to_rewrite(song):
    before, key = shown(song), song.keyboard.press
    song.locator(".roll").first.focus()
    key("Shift+ArrowRight")
    key("Shift+ArrowRight")
    assert song.locator("#selected").inner_text().startswith("Bars 1–2: ")
    key("Shift+ArrowLeft")
    assert song.locator("#selected").inner_text().startswith("Bar 1: ")

    def go_to(name):
        for _ in range(40):
            if song.evaluate("document.activeElement.textContent") == name:
                return
            key("Tab")
        raise AssertionError(f"no way to {name}")

    go_to("Bass")
    key("Space")
    assert song.locator("#selected").inner_text() == "Bar 1: Bass"
    go_to("Rewrite")
    key("Enter")
    wait_for(song, DONE)
    go_to("Take 1")
    key("Enter")
    assert shown(song) != before
    key("ControlOrMeta+z")  # gives the takes up
    assert song.locator("#takes").is_hidden()
    assert shown(song) == before
    assert button(song, "Undo").is_enabled()


def test_a_part_alone_is_written_in_all_bars_and_a_lock_holds_for_other_takes(song):
    button(song, "Piano").click()
    button(song, "Rewrite").click()
    wait_for(song, DONE)
    button(song, "Take 1").click()
    assert song.locator("#selected").inner_text() == "All bars: Piano"
    button(song, "Discard").click()
    assert song.locator("#takes").is_hidden()
    song.get_by_label("Bars to add").fill("2")
    button(song, "Continue").click()
    wait_for(song, "tokens a second")
    button(song, "Lock Voice").click()
    button(song, "Another take of the last 4 bars").click()  # so that Voice stays
    wait_for(song, DONE)
    button(song, "Take 1").click()
    voice = "page.roll.score.notes.filter(({ track }) => !track).map(({ onset, end, pitch }) => [onset, end, pitch])"
    taken = song.evaluate(voice)
    button(song, "As it was").click()
    assert song.evaluate(voice) == taken


@pytest.mark.parametrize("width", [1280, 390])
def test_the_controls_have_names_and_room(width, folder):
    with opened(folder / "songs.html", width) as tab:
        drop(tab, folder / FILE)
        wait_for(tab, "Press Continue")
        tab.get_by_label("First bar to rewrite").fill("2")
        tab.keyboard.press("Tab")
        button(tab, "Rewrite").click()
        wait_for(tab, DONE)
        check_access(tab)
        check_width(tab)
        check_controls(tab, width, "button:visible, input:visible")


def test_the_file_is_dragged_out_as_it_would_be_saved(song, folder):
    song.locator("#save").hover()
    wait_until(song, lambda: song.evaluate("page.dragged !== null"))
    text = song.evaluate(
        """() => {
          const dataTransfer = new DataTransfer();
          byId("save").dispatchEvent(new DragEvent("dragstart", { dataTransfer }));
          return dataTransfer.getData("DownloadURL");
        }"""
    )
    kind, name, url = text.split(":", 2)
    assert (kind, name) == ("audio/midi", FILE)
    data = base64.b64decode(url.removeprefix("data:audio/midi;base64,"))
    with song.expect_download() as download:
        button(song, "Save MIDI").click()
    assert download.value.path().read_bytes() == data


def test_models_of_other_music_do_not_show_it(folder):
    with opened(folder / "chorale.html") as tab:
        tab.wait_for_selector("#continue:enabled")
        assert tab.locator(".rewriting:visible, .lock").count() == 0
