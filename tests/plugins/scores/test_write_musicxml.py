"""MusicXML that is written is read back note for note: here, by verovio and by music21."""

import random
from fractions import Fraction
from importlib.util import find_spec
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from musicgen.midi import TEMPO, KeySignature, Marker, Score, TimeSignature, Track, notes_from
from musicgen.midi.score import DOUBLE_BAR, FERMATA
from musicgen.plugins.scores import write_musicxml
from musicgen.plugins.scores.engraver import engraver
from musicgen.plugins.scores.mei import read_mei
from musicgen.plugins.scores.printed_scores import read_score
from musicgen.plugins.scores.written_time import Sound, deal_to_voices, write_values

METRES = [(4, 4), (3, 4), (6, 8), (2, 2), (5, 8), (7, 8), (9, 8), (3, 8), (5, 4)]
UNITS = {"triplets": 160, "sixteenths": 120, "quarters": 480, "quintuplets": 96, "twelfths": 40}


def random_track(rng, name, program, end):
    """Notes of several lines on several grids, held over others, beats and bar lines."""
    rows = set()
    start = rng.choice([0, 0, 480, 1200])
    for _ in range(rng.randint(1, 3)):
        at, middle = start, rng.randint(45, 75)
        while at < end:
            unit = rng.choice([*UNITS.values()])
            for _ in range(rng.randint(1, 4)):
                length = unit * rng.choice([1, 1, 2, 3, 4, 7])
                held = min(length * rng.choice([1, 1, 1, 3]), end - at)
                for _ in range(rng.choice([0, 1, 1, 2, 3])):
                    if held > 0:
                        rows.add((at, held, middle + rng.randint(-12, 12)))
                at += length
            at = -(-at // 480) * 480 if unit == 96 or rng.random() < 0.7 else at
    kept, free = [], {}  # a track of MIDI has a pitch once at a time
    for onset, length, pitch in sorted(rows):
        if free.get(pitch, 0) <= onset:
            free[pitch] = onset + length
            kept.append((onset, length, pitch, 80))
    return Track(name, program, notes=notes_from(kept))


def random_piece(seed, has_drums=True):
    rng, tick, signatures = random.Random(seed), 0, []
    for _ in range(rng.randint(2, 5)):
        metre = rng.choice(METRES)
        if not signatures or signatures[-1][1:] != metre:
            signatures.append(TimeSignature(tick, *metre))
        tick += 1920 * metre[0] // metre[1] * rng.randint(1, 2)
    names = [("Piano", 0), ("Violin 1", 40), ("Violin 2", 40), ("Viola", 41), ("Bass", 43)]
    tracks = [random_track(rng, *each, tick) for each in rng.sample(names, rng.randint(1, 4))]
    if has_drums:
        beats = [(t, 120, rng.choice([35, 38, 42, 49, 60]), 80) for t in range(0, tick, 240)]
        tracks.append(Track("Drums", 0, True, notes_from(beats)))
    key = KeySignature(0, rng.randint(-7, 7), rng.random() < 0.5)
    tempos = np.array([(0, 96.5)], TEMPO)
    markers = [Marker(0, "F#_m7_E"), Marker(480, "C_M_C")]
    return Score(480, tracks, tempos, signatures, markers, key_signatures=[key])


def parts_of(score):
    """Name, program, and onset, length and pitch of the notes of each part that plays."""
    return [
        (t.name, t.program, t.is_drum, sorted(row[:3] for row in t.notes.tolist()))
        for t in score.tracks
        if len(t.notes)
    ]


def written(tmp_path, score, title=""):
    path = tmp_path / "written.musicxml"
    path.write_bytes(write_musicxml(score, title))
    return path


def read_back(tmp_path, score):
    return read_score(written(tmp_path, score))


@pytest.mark.parametrize("seed", range(12))
def test_random_pieces_are_read_back(tmp_path, seed):
    score = random_piece(seed)
    found = read_back(tmp_path, score)
    assert parts_of(found) == parts_of(score)
    assert found.markers == score.markers
    assert found.key_signatures == score.key_signatures
    assert found.tempos.tolist() == score.tempos.tolist()


@pytest.mark.skipif(find_spec("verovio") is None, reason="verovio is not installed")
@pytest.mark.parametrize("seed", range(100, 106))
def test_verovio_reads_the_same_notes_by_their_printed_values(tmp_path, seed):
    score = random_piece(seed, has_drums=False)
    text = written(tmp_path, score).read_text()
    mei, events = engraver().engrave(text, "xml", "expandNever")
    found = read_mei(ElementTree.fromstring(mei), events).score()
    assert [part[3] for part in parts_of(found)] == [part[3] for part in parts_of(score)]


@pytest.mark.skipif(find_spec("music21") is None, reason="music21 is not installed")
def test_music21_reads_the_same_notes(tmp_path):
    converter = pytest.importorskip("music21.converter")
    track = random_piece(3, has_drums=False).tracks[0]
    score = Score(480, [Track("Flute", 73, notes=track.notes)])
    pieces = []
    for each in converter.parse(written(tmp_path, score)).flatten().notes:
        for note in each.notes if each.isChord else [each]:
            first, last = (round(480 * t) for t in (each.offset, each.offset + each.quarterLength))
            tie = note.tie.type if note.tie else ""
            pieces.append((first, last, note.pitch.midi, tie))
    found, open_notes = [], {}
    for first, last, pitch, tie in sorted(pieces):
        is_tied = tie in ("stop", "continue")
        onset = open_notes.pop((pitch, first)) if is_tied else first
        if tie in ("start", "continue"):
            open_notes[pitch, last] = onset
        else:
            found.append((onset, last - onset, pitch))
    shift = min(found)[0] - score.start  # of an upbeat
    assert sorted((on - shift, *rest) for on, *rest in found) == parts_of(score)[0][3]
    assert not open_notes


def values(spans, length, metre):
    """The values of sounds in a bar: length, and dots, which rests have in brackets."""
    sounds = [Sound(Fraction(first), Fraction(last), (60,)) for first, last in spans]
    found = write_values(sounds, Fraction(0), Fraction(length), metre)
    return [
        (float(v.base) if v.sound else [float(v.base)], v.is_dotted, v.tuplet and v.tuplet[2:])
        for v in found
    ]


@pytest.mark.parametrize(
    ("spans", "length", "metre", "expected"),
    [
        ([(0, Fraction(5, 2)), (Fraction(5, 2), 4)], 4, (4, 4), [(2, 0), (0.5, 0), (1, 1)]),
        (
            [(Fraction(1, 2), Fraction(3, 2)), (Fraction(3, 2), 4)],
            4,
            (4, 4),
            [([0.5], 0), (1, 0), (0.5, 0), (2, 0)],
        ),
        (
            [(Fraction(3, 4), Fraction(5, 4))],
            2,
            (2, 4),
            [([0.5], 1), (0.25, 0), (0.25, 0), ([0.5], 1)],
        ),
        ([(0, 3)], 3, (6, 8), [(2, 1)]),
        ([(0, 1), (1, 2), (2, 3)], 3, (6, 8), [(1, 0), (0.5, 0), (0.5, 0), (1, 0)]),
        ([(0, Fraction(5, 2))], Fraction(5, 2), (5, 8), [(2, 0), (0.5, 0)]),
        ([], 3, (3, 4), [([2], 1)]),
    ],
)
def test_values_show_the_beats(spans, length, metre, expected):
    assert [found[:2] for found in values(spans, length, metre)] == expected


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(Fraction(k, 3), Fraction(k + 1, 3)) for k in range(3)], [(0.5, 0, (3, 2))] * 3),
        ([(Fraction(2 * k, 3), Fraction(2 * k + 2, 3)) for k in range(3)], [(1, 0, (3, 2))] * 3),
        ([(Fraction(k, 5), Fraction(k + 1, 5)) for k in range(5)], [(0.25, 0, (5, 4))] * 5),
        (
            [(0, Fraction(2, 3)), (Fraction(2, 3), Fraction(3, 4))],
            [(1, 0, (3, 2)), (0.125, 0, (3, 2))],
        ),
    ],
)
def test_tuplets_are_found_in_the_beats_that_they_fill(spans, expected):
    assert values(spans, 4, (4, 4))[: len(expected)] == expected


def test_the_highest_of_voices_at_once_is_the_first():
    bass, tune = (
        Sound(Fraction(0), Fraction(4), (40,)),
        [Sound(Fraction(k), Fraction(k + 1), (72 - k,)) for k in range(1, 6)],
    )
    first, second = deal_to_voices([bass, *tune])
    assert (first, second) == (tune, [bass])


def test_played_notes_are_moved_to_their_beats(tmp_path):
    rng = random.Random(1)
    exact = [(480 * k // 2, 240, 60 + k % 5, 80) for k in range(16)]
    exact += [(3840 + 160 * k, 160, 67, 80) for k in range(6)]
    played = [(max(0, on + rng.randint(-25, 25)), 200 + on % 7, *rest) for on, _, *rest in exact]
    onsets = [
        note[0] for note in parts_of(read_back(tmp_path, Score(480, [played_track(played)])))[0][3]
    ]
    assert onsets == sorted(note[0] for note in exact)
    gated = [(on, length * 19 // 20, *rest) for on, length, *rest in exact]
    found = read_back(tmp_path, Score(480, [played_track(gated)]))
    assert parts_of(found)[0][3] == sorted(row[:3] for row in exact)


def played_track(rows):
    return Track("Flute", 73, notes=notes_from(rows))


def elements(score, path):
    root = ElementTree.fromstring(write_musicxml(score))
    return [each.text for each in root.iterfind(f".//{path}")]


def test_pitches_are_spelled_by_the_key_with_the_accidentals_of_a_bar():
    rows = [(480 * k, 480, pitch, 80) for k, pitch in enumerate([70, 71, 70, 73, 70, 73])]
    for fifths, steps, signs in (
        (-3, "BBBDBD", ["natural", "flat", "flat", "flat"]),
        (6, "ABACAC", ["natural"]),
    ):
        score = Score(480, [played_track(rows)], key_signatures=[KeySignature(0, fifths)])
        assert elements(score, "step") == [*steps]
        assert elements(score, "accidental") == signs if fifths < 0 else True


def test_an_upbeat_is_a_short_bar(tmp_path):
    rows = [(1440, 480, 67, 80), (1920, 1920, 72, 80)]
    score = Score(480, [played_track(rows)])
    root = ElementTree.fromstring(write_musicxml(score))
    first, second = root.iter("measure")
    assert (first.get("implicit"), second.get("implicit")) == ("yes", None)
    assert len(first.findall("note")) == len(second.findall("note")) == 1
    assert parts_of(read_back(tmp_path, score)) == parts_of(score)


def test_a_piano_has_two_staves_and_a_tune_one():
    chords = [(0, 960, pitch, 80) for pitch in (48, 52, 67, 72)]
    assert elements(Score(480, [Track("Piano", notes=notes_from(chords))]), "staves") == ["2"]
    assert elements(Score(480, [Track("Piano", notes=notes_from(chords))]), "sign") == ["G", "F"]
    tune = [(480 * k, 480, 55 + k, 80) for k in range(12)]
    assert elements(Score(480, [Track("Piano", notes=notes_from(tune))]), "staves") == []
    for program, sign in ((41, "C"), (42, "F"), (40, "G"), (25, "G")):
        notes = notes_from([(0, 480, 50 if program == 42 else 60, 80)])
        assert elements(Score(480, [Track("", program, notes=notes)]), "sign") == [sign]


def test_signs_of_the_piece_are_written(tmp_path):
    rows = [(480 * k, 480, 60, 40 + 60 * (k // 4)) for k in range(8)]
    tempos = np.array([(0, 90), (1920, 60)], TEMPO)
    markers = [Marker(0, "N_N_N"), Marker(960, "Bb_7"), Marker(1440, FERMATA), Marker(1920, "B")]
    markers.append(Marker(2880, DOUBLE_BAR))
    score = Score(480, [played_track(rows)], tempos, [TimeSignature(0, 6, 8)], markers)
    found = read_back(tmp_path, score)
    assert found.tempos.tolist() == tempos.tolist()
    assert found.markers == [markers[0], Marker(960, "Bb_7_Bb"), markers[2], markers[4]]
    assert elements(score, "bar-style") == ["light-light", "light-heavy"]
    assert elements(score, "per-minute") == ["60", "40"]
    assert elements(score, "rehearsal") == ["B"]
    root = ElementTree.fromstring(write_musicxml(score, "Tune & <more>"))
    assert [each[0].tag for each in root.iter("dynamics")] == ["p", "mf", "f"]
    assert root.findtext("work/work-title") == "Tune & <more>"


def test_scores_without_notes_and_texts_that_xml_has_no_place_for_are_written():
    assert elements(Score(), "part-name") == ["Music"]
    track = Track("Flute\0 & \x1b", 73, notes=notes_from([(0, 480, 60, 80)]))
    score = Score(480, [track], markers=[Marker(0, "\0 "), Marker(0, "Verse\0")])
    assert elements(score, "part-name") == ["Flute & "]
    assert elements(score, "rehearsal") == ["Verse"]
    no_utf_8 = "Tune\udcff"  # as in the name of a file
    titled = ElementTree.fromstring(write_musicxml(score, no_utf_8))
    assert titled.findtext("work/work-title") == "Tune"


@pytest.mark.parametrize("ticks_per_beat", [96, 100, 220, 384, 1024])
def test_triplets_and_twelfths_are_those_of_any_number_of_ticks(tmp_path, ticks_per_beat):
    places = [0, 1, 2, 3, 4, 6, 8, 12, 15, 16, 20, 24]  # twelfths of a quarter
    ticks = [round(ticks_per_beat * place / 12) for place in places]
    rows = [(on, off - on, 60, 80) for on, off in pairwise(ticks)]
    found = read_back(tmp_path, Score(ticks_per_beat, [played_track(rows)]))
    assert [note[0] // 40 for note in parts_of(found)[0][3]] == places[:-1]
