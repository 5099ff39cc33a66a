"""Keys with a mode, and the counts of bars up to the ends of phrases and of the piece."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from musicgen.composer import compose_song
from musicgen.errors import ParameterError
from musicgen.generation.constraints import ConstrainedGrammar
from musicgen.generation.prompt import empty_prompt, make_prompt
from musicgen.generation.request import GenerationRequest
from musicgen.midi import KeySignature, Marker, Score, TimeSignature, Track, notes_from
from musicgen.midi.score import DOUBLE_BAR, FERMATA
from musicgen.tokenization import Songs
from musicgen.tokenization.augmentation import transpose
from musicgen.tokenization.bar_constraints import PlannedEnds
from musicgen.tokenization.bar_headers import FixedTimeSignature
from musicgen.tokenization.phrases import FULL, HALF, PIECE, bars_left
from musicgen.tokenization.vocabulary import within
from tests.tokenization.conftest import random_walk
from tests.tokenizers import frozen_tokenizers

PLAIN = frozen_tokenizers()["songs"]
SONGS = Songs(**PLAIN.settings() | {"phrases": True})
BAR = 1920


def tune(name, onsets, *, bars=8, markers=()):
    """A tune of quarters at some beats over a piano that plays C E G all the time."""
    notes = notes_from([(480 * beat, 480, 72, 80) for beat in onsets])
    chord = [(0, BAR * bars, each, 80) for each in (48, 52, 55)]
    tracks = [Track(name, notes=notes), Track("Piano", notes=notes_from(chord))]
    return Score(480, tracks, key_signatures=[KeySignature(0, 0)], markers=[*markers])


def counts(tokenizer, tokens):
    """The count of each bar; None without one."""
    found = []
    for token in tokens.tolist():
        family, _, value = tokenizer.vocabulary.token(token).partition("_")
        if family == "Bar":
            found.append(None)
        elif family == "Left":
            found[-1] = value
    return found


def test_a_phrase_ends_before_a_rest_of_the_voice_and_half_on_the_dominant():
    beats = [*range(13), *range(16, 32)]  # three beats of rest at the end of bar 4
    expected = [None, None, "full_2", "full_1", None, None, "piece_2", "piece_1"]
    expected[0], expected[4] = "full_4", "piece_4"
    assert counts(SONGS, SONGS.encode(tune("Voice", beats))) == ["piece_8", *expected[1:]]
    markers = [Marker(0, "C_M"), Marker(3 * BAR, "G_7"), Marker(4 * BAR, "C_M")]
    halves = [each and each.replace("full", "half") for each in expected]
    found = counts(SONGS, SONGS.encode(tune("Voice", beats, markers=markers)))
    assert found == ["piece_8", *halves[1:]]
    # The rest of an instrument above others that go on ends no phrase.
    of_piano = counts(SONGS, SONGS.encode(tune("Flute", beats)))
    assert of_piano == ["piece_8", *[None] * 3, "piece_4", None, "piece_2", "piece_1"]
    assert counts(PLAIN, PLAIN.encode(tune("Voice", beats))) == [None] * 8


@pytest.mark.parametrize(("text", "tick"), [(DOUBLE_BAR, 4 * BAR), (FERMATA, 3 * BAR + 960)])
def test_double_bars_and_fermatas_end_phrases(text, tick):
    found = counts(SONGS, SONGS.encode(tune("Voice", range(32), markers=[Marker(tick, text)])))
    assert found[1:4] == [None, "full_2", "full_1"]


def test_counts_begin_anew_with_each_phrase_and_the_end_of_the_piece_has_priority():
    bars, index = bars_left(np.array([2, 11, 11, 15]), np.array([HALF, FULL, HALF, FULL]), 16)
    at = dict(
        zip(
            bars.tolist(),
            [SONGS.vocabulary.names[SONGS.families["Left"][i]] for i in index],
            strict=True,
        )
    )
    assert at == {
        **{1: "Left_half_2", 2: "Left_half_1", 4: "Left_half_8"},
        **{8: "Left_piece_8", 10: "Left_half_2", 11: "Left_half_1"},
        **{12: "Left_piece_4", 14: "Left_piece_2", 15: "Left_piece_1"},
    }


def test_keys_have_the_mode_of_the_file_or_else_of_the_notes():
    def key(score, tokenizer=SONGS):
        ids = within(tokens := tokenizer.encode(score), tokenizer.families["Key"])
        return [tokenizer.vocabulary.token(token) for token in tokens[ids].tolist()]

    def chords(*triads):
        rows = [(BAR * i, BAR, p, 80) for i, triad in enumerate(triads) for p in triad]
        return Score(480, [Track("Piano", notes=notes_from(rows))])

    c_major, a_minor = (
        chords((48, 52, 55), (53, 57, 60), (55, 59, 62), (48, 52, 55)),
        chords((45, 48, 52), (50, 53, 57), (52, 56, 59), (45, 48, 52)),
    )
    assert key(c_major) == ["Key_0"]
    assert key(a_minor) == ["Key_0m"]
    assert key(a_minor, PLAIN) == ["Key_0"]
    assert key(replace(a_minor, key_signatures=[KeySignature(0, 0)])) == ["Key_0m"]
    assert key(replace(c_major, key_signatures=[KeySignature(0, 0, True)])) == ["Key_0m"]
    # A file that says minor somewhere means major elsewhere.
    both = [KeySignature(0, 0), KeySignature(2 * BAR, 0, True)]
    assert key(replace(a_minor, key_signatures=both)) == ["Key_0", "Key_0m"]
    tokens = SONGS.encode(replace(a_minor, key_signatures=both))
    assert SONGS.decode(tokens).key_signatures == both
    moved = SONGS.decode(transpose(SONGS, tokens, 3)).key_signatures
    assert moved == [KeySignature(0, -3), KeySignature(2 * BAR, -3, True)]


@pytest.mark.parametrize("seed", range(4))
def test_songs_and_their_crops_are_grammatical_and_hold_the_same_music(seed):
    score = compose_song(seed, 0)
    tokens = SONGS.encode(score)
    assert SONGS.decode(tokens).notes.tolist() == PLAIN.decode(PLAIN.encode(score)).notes.tolist()
    starts = SONGS.crops.starts(tokens, bar_length=48)
    for start in range(0, len(starts), 3):
        crop = SONGS.crops.crop(tokens, starts[start:], 300)
        SONGS.grammar().start(crop[None])
        assert within(crop, SONGS.families["Key"]).sum() >= 1


def test_a_prompt_has_no_counts_of_bars_behind_it():
    tokens = SONGS.encode(tune("Voice", [*range(13), *range(16, 32)]))[:-1]
    lines = np.flatnonzero(within(tokens, SONGS.families["Bar"]))
    assert counts(SONGS, SONGS.beginning(tokens[: lines[3]])) == [None] * 3
    found = counts(SONGS, SONGS.beginning(tokens[: lines[5]]))
    assert found == [None, None, "full_2", "full_1", None]


def test_a_new_piece_with_a_key_has_no_counts():
    prompt = empty_prompt(SONGS, keys=[KeySignature(0, 3, True)])
    found = [SONGS.vocabulary.token(token) for token in prompt.tokens.tolist()]
    assert found == ["Bar_4/4", "Key_3m"]


@pytest.mark.parametrize("span", [(0, None), (4 * BAR, 8 * BAR)])
def test_bars_without_kept_notes_have_the_counts_of_all_parts(span):
    score = tune("Voice", range(8))
    score.tracks[1].notes = notes_from([(BAR * i, BAR, 48, 80) for i in range(8)])
    start, end = span
    kept = SONGS.keep_parts(score, [] if end else ["voice"], start, end, ["piano"] if end else [])
    assert counts(SONGS, kept.ids[kept.ids >= 0])[:8] == counts(SONGS, SONGS.encode(score))


def test_the_bars_before_planned_ends_have_their_counts_and_others_none():
    grammar = SONGS.grammar()
    plans = [[(2 * 48, HALF), (3 * 48, FULL), (6 * 48, PIECE)], []]
    constraint = PlannedEnds(grammar, [np.array(plan).reshape(-1, 2) for plan in plans])
    constrained = ConstrainedGrammar(grammar, [constraint, FixedTimeSignature(grammar)])
    first = SONGS.vocabulary.id("Bar_4/4")
    state = constrained.start(np.full((2, 1), first))
    left = constrained.allowed(state).numpy()[:, grammar.slices["Left"]]
    assert left.sum(axis=1).tolist() == [1, 8]  # without a plan half and full phrases are free
    tokens, _ = random_walk(SONGS, 2, 1200, 3, state=state, grammar=constrained)
    planned, free = (
        counts(SONGS, np.append(first, row[row != SONGS.vocabulary.pad_id])) for row in tokens
    )
    # In bar 3 four bars of the piece are left, and one of a phrase: so it is in training, too.
    assert planned[:6] == ["half_2", "half_1", "piece_4", None, "piece_2", "piece_1"]
    assert not any((count or "").startswith("piece") for count in planned[6:] + free)


def test_a_plan_counts_the_bars_of_the_piece_without_its_upbeat():
    """After an upbeat of 1/4, bars of 4/4, 2/4 and 4/4; the piece goes on in 4/4."""
    changes = [(0, 1), (480, 4), (2400, 2), (3360, 4)]
    signatures = [TimeSignature(tick, number, 4) for tick, number in changes]
    notes = notes_from([(tick, 480, 72, 80) for tick in range(0, 5280, 480)])
    score = Score(480, [Track("Voice", notes=notes)], time_signatures=signatures)
    prompt = make_prompt(SONGS, score, "piece", 3)
    assert prompt.end.step == 12 + 48 + 24 + 48

    def planned(**options):
        return GenerationRequest.of(bars=2, **options).planned_ends(prompt).tolist()

    assert planned(cadence="half@3,full@5") == [[132, HALF], [228, FULL]]
    assert planned(form="AB", section_bars=2) == [[84, FULL], [180, FULL]]
    with pytest.raises(ParameterError, match=r"cadence=full@6: expected bars up to 5"):
        planned(cadence="full@6", ending="close")


def test_a_plan_is_read_and_wrong_ones_are_refused():
    request = GenerationRequest.of(cadence="half@8,full@12", ending="close", bars=12)
    end = SimpleNamespace(step=4 * 48)
    prompt = SimpleNamespace(kept=None, bar_length=48, end=end, score=Score(480))
    ends = [(8 * 48, HALF), (12 * 48, FULL), (16 * 48, PIECE)]
    assert request.planned_ends(prompt).tolist() == [list(end) for end in ends]
    assert request.closes
    assert not GenerationRequest.of(cadence="half@8").closes
    sections = GenerationRequest.of(form="AABA", section_bars=8, bars=16).planned_ends(prompt)
    assert sections.tolist() == [[8 * 48, FULL], [16 * 48, FULL]]
    with pytest.raises(ParameterError, match="up to 16"):
        GenerationRequest.of(cadence="half@17", bars=12).planned_ends(prompt)
    for wrong in ("half@0", "half", "perfect@8", "close,half@8", "half@8;full@16"):
        with pytest.raises(ParameterError, match="half@8,full@16"):
            GenerationRequest.of(cadence=wrong)
