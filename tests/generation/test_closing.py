"""Where music ends, by numbers: masks, the last chord, and where it begins."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from musicgen.generation.constraints import Begin, EndBy, NoEarlyEnd, end_constraints
from musicgen.midi import Score
from musicgen.midi.key import Key
from musicgen.tokenization.chords import chord_index
from musicgen.tokenization.closing import (
    BY_STEP,
    LastChordInRange,
    LastChordOfBars,
    LastTonic,
    TuneByStep,
    last_chord,
    last_pitches,
    last_tonic,
    top_line,
)
from musicgen.tokenization.constraints import tonic_pitches
from musicgen.tokenization.grammar import NEVER
from tests.generation.builders import TOKENIZERS
from tests.generation.test_endings import SONGS, tune

REMI = TOKENIZERS["remi"]  # four grid steps per beat, and a bar of 16
NOTE = ["Pitch_60", "Velocity_64", "Duration_4"]
C_MAJOR, ONE = [Key(0, True)], np.arange(1)


def after(*rows, tokenizer=REMI):
    """The grammar, and its state after rows of names of tokens."""
    grammar, index = tokenizer.grammar(), tokenizer.vocabulary.id
    return grammar, grammar.start(np.array([[index(name) for name in row] for row in rows]))


def names(mask, family, tokenizer=REMI):
    """What is allowed of a family: the last words of its tokens."""
    ids = tokenizer.families[family]
    mask = np.asarray(mask)[ids.start : ids.stop]
    words = (tokenizer.vocabulary.token(ids[i]) for i in np.flatnonzero(mask))
    return [word.partition("_")[2] for word in words]


def test_before_new_music_only_the_time_moves():
    row = ["Bar", "Beat_8", *NOTE]
    grammar, state = after(row, row, row)
    begin = Begin(grammar, np.array([8, 9, 20]))
    mask = begin.allowed(state, np.arange(3))
    assert mask[0].all()  # it has begun
    assert names(mask[1], "Beat") == [str(i) for i in range(9, len(REMI.families["Beat"]))]
    assert names(mask[2], "Beat") == [str(i) for i in range(20, len(REMI.families["Beat"]))]
    for of_row in mask[1:]:
        assert len(names(of_row, "Bar")) == len(REMI.families["Bar"])
        assert of_row[grammar.eos]
        assert not names(of_row, "Pitch")
    assert begin.allowed(state, np.array([0, 0, 0])) is None


def test_a_piece_ends_no_earlier_than_asked():
    row = ["Bar", "Beat_8", *NOTE]
    grammar, state = after(row, row)
    begin, ends = np.array([0, 0, 12]), np.array([8, 9, 8])
    constraint = NoEarlyEnd(grammar, begin, ends)
    assert constraint.allowed(state, np.array([0, 0])) is None  # exactly then it may
    early, mixed = (constraint.allowed(state, np.array(rows)) for rows in ((1, 1), (0, 1)))
    assert not early[grammar.eos]
    assert early.sum() == len(early) - 1
    assert mixed[:, grammar.eos].tolist() == [True, False]
    assert mixed.sum() == mixed.size - 1
    # Time may end, but new music has not begun, and tokens of time lead there.
    waiting = constraint.allowed(state, np.array([0, 2]))
    assert waiting[:, grammar.eos].tolist() == [True, False]


def test_the_constraints_of_an_end():
    grammar, _ = after(["Bar"])
    begin, may_end = np.array([4]), np.array([8])
    found = end_constraints(grammar, begin, may_end, np.array([16]))
    assert [type(each) for each in found] == [EndBy, Begin, NoEarlyEnd]
    assert [type(x) for x in end_constraints(grammar, begin, may_end, None)] == [Begin, NoEarlyEnd]
    assert (found[1].begin[0], found[2].begin[0], found[2].may_end[0]) == (4, 4, 8)


def test_no_note_sounds_beyond_the_limit_and_no_bar_begins_there():
    grammar, state = after(["Bar", "Beat_12", "Pitch_60", "Velocity_64"])
    longest = []
    for limit in (15, 16, 17):
        narrow = EndBy(grammar, np.array([limit])).restrict(state)
        mask = grammar.allowed(narrow)[0, grammar.slices["Duration"]].numpy()
        longest.append((grammar.durations[mask] / grammar.unit).max())
    assert longest == [3, 4, 5]
    _, state = after(["Bar", "Beat_12", *NOTE])
    for limit, may in ((16, False), (17, True)):
        narrow = EndBy(grammar, np.array([limit])).restrict(state)
        assert bool(names(grammar.allowed(narrow)[0], "Bar")) == may


def test_a_row_that_may_not_end_keeps_its_logits():
    """Within a note, durations beyond the limit are no reason to end."""
    grammar, index = REMI.grammar(), REMI.vocabulary.id
    rows = [["Bar", "Beat_12", *NOTE], ["Bar", "Bar", "Beat_12", "Pitch_60", "Velocity_64"]]
    state = grammar.start(np.array([[index(name) for name in row] for row in rows]))
    constraint = EndBy(grammar, np.array([16, 32]))
    narrow = constraint.restrict(state)
    logits = torch.zeros(2, len(REMI.vocabulary), dtype=torch.float64)
    found = constraint.redirect(narrow, logits, grammar.allowed(narrow))
    assert found[1].tolist() == logits[1].tolist()
    assert float(found[0, grammar.eos]) == pytest.approx(np.log(1 + len(REMI.families["Bar"])))


def c_major(tokenizer, start, tunes=(), targets=None, middle=60):
    """C major from a grid step on: below 48 pitches are C, below `middle` only C begins alone."""
    grammar, pitches = tokenizer.grammar(), tokenizer.pitches
    roots, chord, lowest = (last_pitches(C_MAJOR, pitches, x)[:, None] for x in (200, 48, middle))
    is_tune = part_mask(tokenizer, tunes)[..., None]
    chord, lowest = (np.where(is_tune, roots, each) for each in (chord, lowest))
    written = None if targets is None else part_mask(tokenizer, targets)
    return LastChordOfBars(grammar, np.array([start]), roots[:, 0], chord, lowest, written)


def part_mask(tokenizer, parts):
    """Which parts have one of some names. [1, num_parts]"""
    every = [part["name"] for part in getattr(tokenizer, "parts", [])]
    number = len(tokenizer.grammar().is_drum)
    return np.isin(np.array([*every, *[""] * number])[:number], [*parts])[None]


def test_the_last_chord_begins_exactly_at_its_step():
    for start, is_last in ((9, False), (8, True)):
        _, state = after(["Bar", "Beat_8"])
        mask = c_major(REMI, start).allowed(state, ONE)[0]
        pitches = names(mask, "Pitch")
        assert ("61" not in pitches) == is_last
        if is_last:
            low, high = ([p for p in map(int, pitches) if (p < 60) == x] for x in (True, False))
            assert {p % 12 for p in low} == {0}
            assert {p % 12 for p in high} == {0, 4, 7}
        beats = names(mask, "Beat")
        assert ("9" in beats) != is_last
        assert "8" in beats  # half of the bar, and no later


@pytest.mark.parametrize(("pitch", "sounds"), [(36, True), (40, False)])
def test_a_third_below_the_middle_needs_a_root_that_sounds(pitch, sounds):
    """A root that sounds beyond the step allows 52, one that ends on it does not."""
    for duration, rings in ((8, True), (4, False)):
        name = [f"Pitch_{pitch}", "Velocity_64", f"Duration_{duration}"]
        _, state = after(["Bar", "Beat_4", *name, "Beat_8"])
        found = names(c_major(REMI, 8).allowed(state, ONE)[0], "Pitch")
        assert ("52" in found) == (sounds and rings)
        assert "43" not in found  # below C3 only the root


def test_notes_that_do_not_stay_end_when_the_last_chord_begins():
    _, state = after(["Bar", "Beat_4", "Pitch_62", "Velocity_64"])
    grammar = REMI.grammar()
    for start, longest in ((8, 4), (7, 3)):
        mask = c_major(REMI, start).allowed(state, ONE)[0, grammar.slices["Duration"]]
        assert (grammar.durations[mask] / grammar.unit).max() == longest


def test_notes_of_the_last_chord_last_for_a_third_of_the_bar():
    for signature, shortest in (("4/4", 16), ("3/4", 12), ("5/4", 20)):
        row = [f"Bar_{signature}", "Key_0", "Part_Voice", "Beat_0", "Pitch_72"]
        grammar, state = after(row, tokenizer=SONGS)
        mask = c_major(SONGS, 0).allowed(state, ONE) & grammar.allowed(state).numpy()
        lengths = grammar.durations[mask[0, grammar.slices["Duration"]]] / grammar.unit
        assert lengths.min() == shortest


def test_the_highest_part_is_the_tune_if_it_is_a_line():
    voice, piano = tune(72, 74, 76).tracks[0], tune(48, 52, 55).tracks[0]
    voice, piano = replace(voice, name="Voice"), replace(piano, name="Piano", program=0)
    parts = [part["name"] for part in SONGS.parts]
    for tracks, expected in (
        ([voice, piano], ["Voice"]),
        ([replace(voice, notes=np.append(voice.notes, voice.notes)), piano], []),  # chords
        ([], ["Voice"]),
    ):
        found = top_line(SONGS, Score(480, tracks))
        assert [parts[i] for i in np.flatnonzero(found)] == expected


def test_the_tune_alone_ends_on_the_root():
    constraint = c_major(SONGS, 0, tunes=["Voice"], middle=48)
    for part, degrees in (("Voice", {0}), ("Piano", {0, 4, 7})):
        _, state = after(["Bar_4/4", "Key_0", f"Part_{part}", "Beat_0"], tokenizer=SONGS)
        pitches = names(constraint.allowed(state, ONE)[0], "Pitch", SONGS)
        assert {int(pitch) % 12 for pitch in pitches} == degrees


@pytest.mark.parametrize(
    ("low", "high", "highest"),
    [(60, 84, 86), (62, 71, 73), (65, 66, 74)],
)
def test_the_last_chord_is_in_the_range_of_its_part(low, high, highest):
    row = ["Bar_4/4", "Key_0", "Part_Piano", "Beat_0"]
    row += [f"Pitch_{low}", "Duration_12", f"Pitch_{high}", "Duration_12", "Beat_12"]
    grammar, state = after(row, tokenizer=SONGS)
    mask = LastChordInRange(grammar, np.array([12])).allowed(state, ONE)
    assert [*map(int, names(mask[0], "Pitch", SONGS))] == [*range(low - 2, highest + 1)]
    assert LastChordInRange(grammar, np.array([13])).allowed(state, ONE) is None


def test_the_tune_steps_to_the_nearest_tonic():
    roots = last_pitches(C_MAJOR, REMI.pitches, 200)
    (grammar, state), start = after(["Bar"]), np.array([16])
    steps = roots, tonic_pitches(C_MAJOR, REMI.pitches, BY_STEP)
    step = TuneByStep(grammar, start, *steps, np.array([[True]]), beat=4)
    assert TuneByStep(grammar, start, *steps, np.array([[False]]), 4).allowed(state, ONE) is None

    def next_names(family, *row):
        return names(step.allowed(after(row)[1], ONE)[0], family)

    neighbours = {int(pitch) % 12 for pitch in next_names("Pitch", "Bar", "Beat_12")}
    assert neighbours == {11, 2}
    assert len(next_names("Pitch", "Bar", "Beat_11")) == len(REMI.pitches)
    for pitch, may_reach in ((67, False), (71, True), (74, True)):
        lengths = next_names("Duration", "Bar", "Beat_8", f"Pitch_{pitch}", "Velocity_64")
        assert ("5" in lengths) == may_reach
        assert "4" in lengths
    for pitch, nearest in ((71, "72"), (74, "72"), (65, "60"), (67, "72")):
        note = [f"Pitch_{pitch}", "Velocity_64", "Duration_2"]
        assert next_names("Pitch", "Bar", "Beat_8", *note, "Bar", "Beat_0") == [nearest]


def test_the_end_comes_after_a_note_of_the_last_chord():
    for row, may in (
        (["Bar", "Beat_8", *NOTE], True),
        (["Bar", "Beat_8"], False),
        (["Bar"], False),
    ):
        grammar, state = after(row)
        assert c_major(REMI, 0).allowed(state, ONE)[0, grammar.eos] == may
        assert c_major(REMI, 99).allowed(state, ONE)[0, grammar.eos]  # not the last chord


def below_kept(*row, start=0, targets=("Piano",)):
    """The mask after a row of Songs in which only some parts are written."""
    grammar, state = after(row, tokenizer=SONGS)
    constraint = c_major(SONGS, start, targets=targets, middle=48)
    return grammar, constraint.allowed(state, ONE)[0]


def test_below_kept_parts_a_written_part_sounds_the_root():
    begin = ["Bar_4/4", "Key_0", "Part_Piano", "Beat_0"]
    for pitch, duration, start, may in (
        (48, 24, 0, True),
        (48, 24, 24, False),  # it ends when the chord begins
        (48, 24, 23, True),
        (52, 24, 0, False),  # no root
        (52, 24, 48, True),  # the chord begins in the next bar
        (52, 24, 47, False),
    ):
        row = [*begin, f"Pitch_{pitch}", f"Duration_{duration}"]
        _, mask = below_kept(*row, start=start)
        assert bool(names(mask, "Bar", SONGS)) == may
    voice = ["Bar_4/4", "Key_0", "Part_Voice", "Beat_0", "Pitch_48", "Duration_24"]
    assert not names(below_kept(*voice)[1], "Bar", SONGS)  # a kept part's root does not count
    _, mask = below_kept("Bar_4/4", "Key_0", "Part_Drums", "Beat_0", "Drum_36", targets=["Drums"])
    assert names(mask, "Bar", SONGS)  # drums have no root


def test_kept_parts_stay_as_they_are():
    for part, limited in (("Voice", False), ("Piano", True)):
        _, mask = below_kept("Bar_4/4", "Key_0", f"Part_{part}", "Beat_0")
        assert ("61" not in names(mask, "Pitch", SONGS)) == limited
    grammar, mask = below_kept("Bar_4/4", "Key_0")  # between parts
    assert "61" not in names(mask, "Pitch", SONGS)
    assert mask[grammar.eos]


def test_the_probability_of_late_notes_goes_to_the_end_in_the_last_bar_alone():
    grammar, state = after(["Bar", "Beat_8", *NOTE])
    logits = torch.zeros(1, len(REMI.vocabulary), dtype=torch.float64)
    logits[0, grammar.eos] = 1
    for limit, changes in ((16, True), (17, False)):
        narrow = EndBy(grammar, np.array([limit])).restrict(state)
        constraint = c_major(REMI, 0)
        allowed = grammar.allowed(narrow) & torch.from_numpy(constraint.allowed(narrow, ONE))
        found = constraint.redirect(narrow, logits, allowed)
        expected = np.log(np.e + 7) if changes else 1  # with the seven beats of the second half
        assert float(found[0, grammar.eos]) == pytest.approx(expected)
        assert found.sum() == pytest.approx(expected)


def piece(**settings):
    given = {"progression": None, "ending": "close", "key": "C", "tonic": None} | settings
    asked = SimpleNamespace(**given, is_closed=given["ending"] == "close")
    return SimpleNamespace(request=SimpleNamespace(piece=asked, end_time=lambda prompt: 64))


def kept(score, span=(0, np.inf), progression=()):
    span_of = SimpleNamespace(span=span, progression=progression)
    return SimpleNamespace(kept=span_of, score=score, tokenizer=REMI, bar_length=16)


NOT_KEPT = SimpleNamespace(
    kept=None, score=None, tokenizer=REMI, bar_length=16, end=SimpleNamespace(step=0)
)


def test_where_the_last_chord_begins():
    c = Key(0, True)
    assert last_tonic(piece().request, NOT_KEPT, 16) == LastTonic(48, c)
    assert last_tonic(piece(ending="open").request, NOT_KEPT, 16) == LastTonic(NEVER, None)
    # The chords that are asked for may end on the tonic, elsewhere, or within the last bar.
    for at, chord, expected in (
        (48, "C_M", LastTonic(48, c)),
        (32, "C_M", LastTonic(48, c)),
        (48, "G_M", LastTonic(48, None)),
        (56, "C_M", LastTonic()),
    ):
        request = piece(progression="given").request
        request.progression = lambda prompt, x=(at, chord_index(chord)): np.array([x])  # noqa: B008
        assert last_tonic(request, NOT_KEPT, 16) == expected


@pytest.mark.parametrize(
    ("last", "ending", "options", "step"),
    [
        (60, "open", {}, 12),
        (72, "open", {}, 12),
        (64, "open", {}, NEVER),
        (64, "close", {}, 12),
        (60, "close", {"span": (0, 4)}, NEVER),
        (60, "close", {"progression": [1]}, NEVER),
    ],
)
def test_the_chord_below_the_last_note_of_a_kept_tune(last, ending, options, step):
    prompt = kept(tune(67, 65, 62, last), **options)
    assert last_tonic(piece(ending=ending).request, prompt, 16).step == step
    assert last_tonic(piece(ending=ending).request, kept(Score(480), **options), 16) == LastTonic()
    # The highest of the last notes tells.
    both = tune(67, 65, 62, last)
    both.tracks.append(tune(48, 48, 48, 49).tracks[0])
    found = last_tonic(piece(ending=ending).request, kept(both, **options), 16).step
    assert found == step


def chords(request, prompt=NOT_KEPT):
    return last_chord(request, prompt).tolist()


def test_a_piece_ends_with_its_dominant_and_tonic():
    c, g7, a, e7 = (chord_index(name) for name in ("C_M", "G_7", "A_m", "E_7"))
    request = piece(tonic=Key(0, True)).request
    assert chords(request) == [[32, g7], [48, c]]
    request.piece.tonic = Key(9, False)
    assert chords(request) == [[32, e7], [48, a]]
    for end, expected in ((48, [[16, e7], [32, a]]), (47, [[31, a]])):
        request.end_time = lambda prompt, end=end: end
        assert chords(request) == expected
    request.piece.tonic = None  # a continuation that closes
    request.end_time = lambda prompt: 64
    assert chords(request) == [[32, g7], [48, c]]
    for end, expected in ((32, [[32, g7], [48, c]]), (33, [[48, c]])):
        prompt = SimpleNamespace(**{**vars(NOT_KEPT), "end": SimpleNamespace(step=end)})
        assert chords(request, prompt) == expected
    request.piece.is_closed = False
    request.progression = lambda prompt: np.array([[0, 5]])
    assert chords(request) == [[0, 5]]


def test_only_the_tonic_below_a_pitch():
    for below, lowest in ((48, [36, 48, 52, 55]), (52, [36, 48, 52, 55]), (53, [36, 48, 55])):
        (allowed,) = last_pitches(C_MAJOR, range(36, 60), below)
        assert (np.flatnonzero(allowed) + 36).tolist() == lowest
