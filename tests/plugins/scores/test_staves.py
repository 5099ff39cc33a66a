"""Staves as verovio draws them: each bar once, with its number, and new notes apart from others."""

import re
from importlib.util import find_spec
from xml.etree import ElementTree

import numpy as np
import pytest

from musicgen.errors import UserError
from musicgen.midi import TEMPO, Score, Track, notes_from
from musicgen.plugins.scores import draw_staves, staves, write_musicxml

needs_verovio = pytest.mark.skipif(find_spec("verovio") is None, reason="needs verovio")
BAR = 1920
HEADS = {"#glyph-E0A4", "#glyph-E0A3"}  # of quarters and of halves


def drawn(score, end, width=1500):
    """The systems of a score, as elements, whose notes are new from a tick on."""
    is_new = [track.notes["onset"] >= end for track in score.tracks]
    [found] = draw_staves(score, is_new, [width])
    return [ElementTree.fromstring(system) for system in found.systems], found.glyphs


def bars_of(systems):
    return [each for system in systems for each in system.iter("g") if "data-bar" in each.attrib]


def heads_of(bar):
    """How many note heads of a bar are the prompt's, and how many are new."""
    heads = [use for use in bar.iter("use") if use.get("href") in HEADS]
    new = {use for each in bar.iter("g") if each.get("class") == "new" for use in each.iter("use")}
    return sum(use not in new for use in heads), sum(use in new for use in heads)


def quarters(pitch, num_bars):
    return notes_from([(480 * i, 480, pitch + i % 3, 80) for i in range(4 * num_bars)])


@needs_verovio
@pytest.mark.parametrize("width", [700, 2600])
def test_each_bar_is_drawn_once_with_its_index_and_a_background(width):
    tracks = [
        Track("Violin 1", 40, notes=quarters(72, 9)),
        Track("Cello", 42, notes=quarters(48, 9)),
    ]
    systems, glyphs = drawn(Score(480, tracks), 4 * BAR, width)
    assert len(systems) > (3 if width == 700 else 0)
    assert [int(bar.get("data-bar")) for bar in bars_of(systems)] == [*range(9)]
    for system in systems:
        _, _, right, height = map(int, system.get("viewBox").split())
        assert right == 10 * width
        edge = 0
        for bar in bars_of([system]):
            box = {name: int(bar[0].get(name)) for name in ("x", "y", "width", "height")}
            assert (bar[0].tag, bar[0].get("class")) == ("rect", "bar")
            assert box["x"] >= edge  # the bars stand side by side
            edge = box["x"] + box["width"]
            assert 0 <= box["y"] < box["y"] + box["height"] <= height + 180
        assert edge <= right
    assert {use.get("href") for each in systems for use in each.iter("use")} == {
        f"#glyph-{code}" for code in glyphs
    }


@needs_verovio
def test_notes_of_the_prompt_and_new_ones_are_told_apart():
    held = (BAR, 960, 60, 80), (BAR, 960, 64, 80)  # in a chord of which one note is new
    rows = [(480 * i, 480, 67 + i % 3, 80) for i in range(4)] + [*held]
    score = Score(
        480, [Track("Piano", 0, notes=notes_from(rows)), Track("Flute", 73, notes=quarters(72, 3))]
    )
    piano, flute = (track.notes for track in score.tracks)
    is_new = [(piano["onset"] == BAR) & (piano["pitch"] == 64), flute["onset"] >= 2 * BAR]
    [found] = draw_staves(score, is_new, [3000])
    bars = bars_of(map(ElementTree.fromstring, found.systems))
    assert [heads_of(bar) for bar in bars] == [(8, 0), (5, 1), (0, 4)]
    assert [bar.get("class") for bar in bars] == ["measure", "measure", "measure all-new"]


@needs_verovio
def test_a_played_note_ahead_of_its_beat_stays_the_prompts():
    late = [0, 13, -9, 21, -25, 7, -13, 19]
    rows = [(480 * i + late[i], 400, 60 + i, 80) for i in range(8)]
    score = Score(480, [Track("Piano", 0, notes=notes_from(rows))])
    early = score.tracks[0].notes["onset"][4]
    assert early < BAR
    bars = bars_of(drawn(score, early + 1)[0])
    assert [heads_of(bar) for bar in bars] == [(4, 0), (1, 3)]


@needs_verovio
def test_names_are_text_and_a_tempo_needs_no_font_of_verovio():
    name = "<script>&1"
    tempos = np.array([(0, 47.333)], TEMPO)
    systems, _ = drawn(Score(480, [Track(name, 40, notes=quarters(60, 1))], tempos), 0)
    texts = [text.text for text in systems[0].iter("text")]
    assert texts == [name, "♩\xa0=\xa047"]
    assert not re.search("[\ue000-\uf8ff]", "".join(texts))


def test_the_file_of_a_score_has_no_names_of_notes():
    assert b" id=" not in re.sub(
        rb"<part-list>.*</part-list>|<part id=",
        b"",
        write_musicxml(Score(480, [Track("Flute", 73, notes=quarters(60, 2))])),
        flags=re.S,
    )


@needs_verovio
def test_music_without_notes_has_a_bar_of_rest():
    assert len(bars_of(drawn(Score(480, [Track("Flute", 73)]), 0)[0])) == 1


def test_what_is_missing_or_fails_is_told(monkeypatch):
    score = Score(480, [Track("Flute", 73, notes=quarters(60, 2))])

    def fail(text, widths):
        raise ValueError("damaged")

    monkeypatch.setattr(staves, "find_spec", lambda name: name)
    monkeypatch.setattr(staves.engraver(), "draw", fail)
    with pytest.raises(UserError, match=r"^verovio cannot engrave it: damaged$"):
        drawn(score, 0)
    monkeypatch.setattr(staves, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"^staves need verovio; run: pip install -e '.\[scores\]'$"
    ):
        drawn(score, 0)
