"""Closed pieces end where the model would begin the next bar, on the tonic chord."""

import numpy as np
import pytest
import torch

import musicgen
from benchmarks.endings import ends_on_tonic, has_pile, last_bar
from musicgen.composer.bands import compose_band
from musicgen.data.corpora import BachChorales
from musicgen.errors import ParameterError
from musicgen.generation.constraints import EndBy
from musicgen.midi import (
    TICKS_PER_BEAT,
    KeySignature,
    Score,
    Track,
    notes_from,
    pitched_notes,
    read,
)
from musicgen.midi.key import Key, final_key, find_key, last_cadence
from musicgen.tokenization import Chorale
from musicgen.tokenization.bar_headers import FixedTimeSignature
from musicgen.tokenization.chorale_grammar import LastChordOfChorale
from musicgen.tokenization.chords import ROOTS, chord_index
from musicgen.tokenization.closing import LastChordOfBars, LastTonic, last_pitches, last_tonic
from musicgen.tokenization.constraints import tonic_pitches
from tests.generation.builders import TOKENIZERS, music_model
from tests.tokenizers import frozen_tokenizers

SONGS, BANDS, TOKENIZERS_OF_CHORALES = (
    frozen_tokenizers()[name] for name in ("songs", "groove2groove_band", "chorale")
)


def test_the_end_has_the_probability_of_going_on():
    tokenizer = TOKENIZERS["remi"]
    grammar = tokenizer.grammar()
    names = ["Bar", "Beat_0", "Pitch_60", "Velocity_64", "Duration_4"]
    state = grammar.start(np.array([[tokenizer.vocabulary.id(name) for name in names]]))
    constraint = EndBy(grammar, np.array([16]))
    closing = constraint.restrict(state)
    logits = torch.randn(1, len(tokenizer.vocabulary), dtype=torch.float64)
    allowed = grammar.allowed(closing)
    assert allowed[0, grammar.eos]
    found = constraint.redirect(closing, logits, allowed).softmax(-1)
    bar, p = tokenizer.vocabulary.id("Bar"), logits.softmax(-1)
    assert not allowed[0, bar]
    # The mass of the end is its own and the bar's; ratios of the others stay.
    pitches = tokenizer.families["Pitch"]
    together = p[0, grammar.eos] + p[0, bar]
    torch.testing.assert_close(found[0, grammar.eos] / found[0, 99], together / p[0, 99])
    torch.testing.assert_close(
        found[0, pitches.start] / found[0, 99], p[0, pitches.start] / p[0, 99]
    )
    # Within a note the piece cannot end, and nothing changes.
    inside = grammar.advance(closing, np.array([pitches.start + 50]))
    same = constraint.redirect(inside, logits, grammar.allowed(inside))
    assert torch.equal(same, logits)


def test_a_bar_line_has_the_probability_of_other_metres_and_of_beats_behind_it():
    grammar, index = SONGS.grammar(), SONGS.vocabulary.id
    names = ["Bar_7/8", "Key_0", "Part_Piano", "Beat_0", "Pitch_60", "Duration_12"]
    state = grammar.start(np.array([[index(name) for name in names]]))
    constraint = FixedTimeSignature(grammar)
    memory, beats = constraint.start(state, [None]), SONGS.families["Beat"]
    allowed = grammar.allowed(state) & torch.from_numpy(constraint.allowed(state, memory))
    logits = torch.randn(1, len(SONGS.vocabulary), dtype=torch.float64)
    found, p = constraint.redirect(state, logits, allowed).exp()[0], logits.exp()[0]
    bars, bar = SONGS.families["Bar"], index("Bar_7/8")
    together = p[bars.start : bars.stop].sum() + p[index("Beat_42") : beats.stop].sum()
    torch.testing.assert_close(found[bar], together)
    others = torch.arange(len(p)) != bar
    assert torch.equal(found[others], p[others])
    # Before a note the piece does not go over to the next bar for that.
    ahead = grammar.start(np.array([[index(name) for name in names[:2]]]))
    allowed = grammar.allowed(ahead) & torch.from_numpy(constraint.allowed(ahead, memory))
    assert allowed[0, bar]
    assert torch.equal(constraint.redirect(ahead, logits, allowed), logits)


def test_a_part_that_would_go_on_in_the_second_half_of_the_last_bar_is_over():
    tokenizer = TOKENIZERS["remi"]
    grammar, index = tokenizer.grammar(), tokenizer.vocabulary.id
    names = ["Bar", "Beat_8", "Pitch_60", "Velocity_64", "Duration_4"]
    start = grammar.start(np.array([[index(name) for name in names]]))
    state, earlier = (EndBy(grammar, np.array([end])).restrict(start) for end in (16, 32))
    roots, chord = (last_pitches([Key(0, True)], tokenizer.pitches, x) for x in (200, 48))
    constraint = LastChordOfBars(grammar, np.array([0]), roots, chord[None], chord[None])
    mask = torch.from_numpy(constraint.allowed(state, np.arange(1)))
    allowed = grammar.allowed(state) & mask
    late = [index(f"Beat_{beat}") for beat in range(9, 16)]
    assert not allowed[0, late].any()
    assert grammar.allowed(state)[0, late].any()
    logits = torch.randn(1, len(tokenizer.vocabulary), dtype=torch.float64)
    found, p = constraint.redirect(state, logits, allowed).softmax(-1)[0], logits.softmax(-1)[0]
    late = [beat for beat in late if grammar.allowed(state)[0, beat]]
    other = index("Pitch_64")
    torch.testing.assert_close(
        found[grammar.eos] / found[other], (p[grammar.eos] + p[late].sum()) / p[other]
    )
    # Before the last bar nothing changes.
    assert constraint.redirect(earlier, logits, allowed) is logits


def test_a_third_below_the_middle_is_not_held_into_the_last_chord():
    tokenizer = TOKENIZERS["remi"]
    grammar, index = tokenizer.grammar(), tokenizer.vocabulary.id
    roots, chord, lowest = (
        last_pitches([Key(0, True)], tokenizer.pitches, x) for x in (200, 48, 60)
    )
    constraint = LastChordOfBars(grammar, np.array([16]), roots, chord[None], lowest[None])
    longest = {}
    for pitch in (48, 52, 62, 64):
        names = ["Bar", "Beat_8", f"Pitch_{pitch}", "Velocity_64"]
        state = grammar.start(np.array([[index(name) for name in names]]))
        mask = constraint.allowed(state, np.arange(1))[0, grammar.slices["Duration"]]
        longest[pitch] = (grammar.durations[mask] / grammar.unit).max()
    last = (grammar.durations / grammar.unit).max()
    assert longest == {48: last, 52: 8, 62: 8, 64: last}


def test_notes_do_not_pile_up_at_the_end_and_the_last_chord_is_the_tonic():
    model = musicgen.load("songs-small")
    options = {"prompt_bars": 4, "bars": 1, "ending": "close", "batch_size": 48}
    pieces = model.generate("example.mid", num_samples=48, seed=1, **options)
    # Most of them pile up if the mask shares the probability among notes.
    assert sum(map(has_pile, pieces)) <= 1
    assert all(ends_on_tonic(piece.score, final_key(piece.prompt.score)) for piece in pieces)
    for notes in (last_bar(piece.score) for piece in pieces):
        in_bar = notes["onset"] % (4 * TICKS_PER_BEAT)
        assert in_bar.max() <= 2 * TICKS_PER_BEAT
        assert set((notes["pitch"][notes["pitch"] < 48] % 12).tolist()) <= {0}
    chords = [piece.score.markers[-1].text for piece in pieces]
    assert {chord.split("_")[0] for chord in chords} <= {*ROOTS}
    assert len(set(chords)) == 1
    assert chords[0].startswith("C_M")


def test_a_chorale_ends_on_a_held_tonic_chord():
    corpus = BachChorales()
    scores = [corpus.read_piece(piece) for piece in [*corpus.pieces()][:2]]
    model = musicgen.load("bach-chorales")
    pieces = model.generate(scores, prompt_bars=2, bars=2, ending="close", num_samples=3)
    for piece in pieces:
        key = final_key(piece.prompt.score)
        assert any(ends_on_tonic(piece.score, Key(key.tonic, x)) for x in {key.major, True})
        ends = [
            int((track.notes["onset"] + track.notes["duration"]).max())
            for track in piece.score.tracks
        ]
        assert ends == 4 * [piece.score.end]


def test_triads_of_keys():
    keys = [Key(0, True), Key(9, False), None]
    assert [np.flatnonzero(row).tolist() for row in tonic_pitches(keys, range(12))] == [
        [0, 4, 7],
        [0, 4, 9],
        [*range(12)],
    ]


def test_the_bass_of_the_last_chord_is_the_tonic():
    (allowed,) = last_pitches([Key(2, False)], range(36, 60))
    assert (np.flatnonzero(allowed) + 36).tolist() == [38, 50, 53, 57]


def test_the_key_is_one_of_the_signature():
    prompt = musicgen.load("songs-small").prompt("example.mid", prompt_bars=6)
    assert find_key(pitched_notes(prompt.score)) == Key(7, True)
    assert final_key(prompt.score) == Key(0, True)
    assert find_key(pitched_notes(prompt.score), fifths=-6).fifths in (-6, 6)


def test_a_signature_of_c_that_the_notes_contradict_is_none():
    score = read("example.mid")
    for track in score.tracks:
        track.notes["pitch"] += 1
    score.key_signatures = [KeySignature(0, 0)]
    prompt = musicgen.load("songs-small").prompt(score, prompt_bars=6)
    assert prompt.score.key_signatures == [KeySignature(0, 0)]
    assert final_key(prompt.score) == Key(1, True)


def score_of(*rows, name="Piano", keys=()):
    """Rows of (bar, pitches), a bar of 4/4 each."""
    notes = [(1920 * bar, 1900, pitch, 80) for bar, pitches in rows for pitch in pitches]
    return Score(480, [Track(name, notes=notes_from(notes))], key_signatures=[*keys])


def tune(*pitches):
    rows = [(480 * i, 470, pitch, 80) for i, pitch in enumerate(pitches)]
    return Score(480, [Track("Voice", notes=notes_from(rows))])


C, G7 = (48, 55, 60, 64, 67), (31, 43, 55, 59, 62, 65, 67)
A_MINOR = (69, 72, 76, 77, 76, 74, 72, 71, 69, 69, 77, 76, 74, 72, 71, 69)


def test_a_long_dominant_is_not_the_tonic():
    score = score_of((0, C), (1, G7), (2, C))
    assert find_key(pitched_notes(score)) == Key(7, True)
    assert final_key(score) == Key(0, True)
    # The key that tokens find from the notes is no signature.
    prompt = music_model(SONGS).prompt(score)
    assert prompt.score.key_signatures == []
    assert final_key(prompt.score) == Key(0, True)


def test_the_last_cadence_tells_the_key():
    scores = [
        score_of((0, C), (1, G7), (2, C)),
        score_of((0, (57, 64)), (1, (52, 56)), (2, (57, 60))),
    ]
    found = [last_cadence(pitched_notes(score), 480) for score in scores]
    assert found == [Key(0, True), Key(9, False)]
    assert last_cadence(pitched_notes(tune(*A_MINOR)), 480) is None


def closing(model, prompt, **options):
    return model.generate(prompt, bars=2, ending="close", num_samples=2, **options)


def classes_at_end(score):
    """Pitch classes that sound with the last note that begins, the lowest first."""
    notes = pitched_notes(score)
    end = notes["onset"] + notes["duration"]
    sounding = np.sort(notes["pitch"][end > notes["onset"].max()]) % 12
    return list(dict.fromkeys(sounding.tolist()))


def test_a_tune_alone_ends_on_its_tonic():
    for piece in closing(music_model(SONGS), tune(*A_MINOR), prompt_bars=4):
        assert classes_at_end(piece.score) == [9]


@pytest.mark.parametrize("index", range(3))
def test_bands_close_on_the_tonic(index):
    score = compose_band(1000, index, 0)
    for piece in closing(music_model(BANDS), score, prompt_bars=2):
        key = final_key(piece.prompt.score)
        line = piece.prompt.end.tick + 4 * TICKS_PER_BEAT
        last = piece.score.clip(line, line + 4 * TICKS_PER_BEAT)
        triad = {(key.tonic + each) % 12 for each in (0, 7, 4 if key.major else 3)}
        assert {*(pitched_notes(last)["pitch"] % 12).tolist()} <= triad
        (bass,) = (track.notes for track in last.tracks if track.name == "Bass")
        assert bass["onset"].min() == 0
        assert {*(bass["pitch"] % 12).tolist()} == {key.tonic}
        third = 4 * TICKS_PER_BEAT // 3
        assert piece.score.notes["onset"].max() <= line + third
        for track, of_prompt in zip(last.tracks, piece.prompt.score.tracks, strict=True):
            end = line + 2 * third if not track.is_drum else 0
            longest = of_prompt.notes["duration"].max(initial=0) or np.inf
            starts, lengths = track.notes["onset"], track.notes["duration"]
            assert ((lengths == longest) | (line + starts + lengths >= end)).all()


def test_a_minor_chorale_ends_in_major_and_has_one_third():
    tokenizer = TOKENIZERS_OF_CHORALES
    grammar, index = tokenizer.grammar(), tokenizer.vocabulary.id
    rests = [LastTonic(0, Key(9, False))]
    constraint = LastChordOfChorale(grammar, rests, tokenizer.pitches, dominants=[0])
    start = grammar.start(np.array([[index("BOS")]]))
    memory = constraint.start(start, [np.array([index("BOS")])])
    pitches = grammar.slices["Pitch"]

    def sung(state, memory):
        mask = constraint.allowed(state, memory)[0, pitches]
        return {(pitch % 12) for pitch, may in zip(tokenizer.pitches, mask, strict=True) if may}

    assert sung(start, memory) == {9, 1, 4}
    for third, other in ((60, 1), (61, 0)):  # the minor one is that of a kept voice
        token = np.array([pitches.start + third - tokenizer.pitches.start])
        state = grammar.advance(start, token)
        assert sung(state, constraint.advance(state, memory, token)) == {9, 0, 1, 4} - {other}
    state = start
    for pitch in (69, 64):  # no voice has sung it, so the tenor does
        token = np.array([pitches.start + pitch - tokenizer.pitches.start])
        state = grammar.advance(state, token)
        memory = constraint.advance(state, memory, token)
    assert sung(state, memory) == {1}


def test_voices_of_the_last_chord_do_not_leap():
    tokenizer = TOKENIZERS_OF_CHORALES
    grammar, first = tokenizer.grammar(), tokenizer.pitches.start
    pitches = grammar.slices["Pitch"]
    rests = [LastTonic(1, Key(9, False))]
    constraint = LastChordOfChorale(grammar, rests, tokenizer.pitches, dominants=[1])
    header = tokenizer.vocabulary.id("BOS")
    tokens = np.array([header, *(pitches.start + x - first for x in (72, 67, 64, 55))])
    state = grammar.start(tokens[None])
    memory = constraint.start(state, [tokens])
    found = []
    for voice in (69, 64, 61, 57):
        mask = constraint.allowed(state, memory)[0, pitches]
        found.append([pitch for pitch, may in zip(tokenizer.pitches, mask, strict=True) if may])
        token = np.array([pitches.start + voice - first])
        state = grammar.advance(state, token)
        memory = constraint.advance(state, memory, token)
    assert found[0] == [61, 64, 69, 73, 76, 81]
    assert found[2] == [61, 73]
    assert found[3] == [45, 57]


@pytest.mark.parametrize(
    ("dominant", "soprano", "expected"),
    [
        (1, 71, [69]),
        (1, 68, [69]),
        (1, 76, [64, 73, 76, 85, 88]),  # not in octaves with the bass
        (1, 83, [81]),
        (0, 72, [71]),
        (0, 69, [68, 71]),
    ],
)
def test_the_soprano_steps_to_the_tonic_if_it_is_near(dominant, soprano, expected):
    """In A minor: to the tonic by a step, to the notes before it by a third at most."""
    tokenizer = TOKENIZERS_OF_CHORALES
    grammar, first = tokenizer.grammar(), tokenizer.pitches.start
    pitches = grammar.slices["Pitch"]
    rests = [LastTonic(2 - dominant, Key(9, False))]
    constraint = LastChordOfChorale(grammar, rests, tokenizer.pitches, dominants=[1])
    header = tokenizer.vocabulary.id("BOS")
    tokens = np.array([header, *(pitches.start + x - first for x in (soprano, 64, 60, 52))])
    state = grammar.start(tokens[None])
    mask = constraint.allowed(state, constraint.start(state, [tokens]))[0, pitches]
    found = [pitch for pitch, may in zip(tokenizer.pitches, mask, strict=True) if may]
    assert found == expected


def test_a_chorale_closes_with_the_dominant_on_a_beat_and_the_tonic_on_two():
    options = {"key": "Gm", "ending": "close", "num_samples": 3, "seed": 1}
    for piece in music_model(Chorale(keys=True)).generate(None, bars=2, **options):
        sounds = piece.score.notes
        for first, last, root, tones in ((5, 6, 2, {2, 6, 9, 0}), (6, 8, 7, {7, 11, 2})):
            for tick in range(first * TICKS_PER_BEAT, last * TICKS_PER_BEAT, TICKS_PER_BEAT // 4):
                ends = sounds["onset"] + sounds["duration"]
                pitches = sounds["pitch"][(sounds["onset"] <= tick) & (ends > tick)]
                assert {*(pitches % 12).tolist()} <= tones
                (bass,) = (track.notes for track in piece.score.tracks if track.name == "Bass")
                bass = bass[(bass["onset"] <= tick) & (bass["onset"] + bass["duration"] > tick)]
                assert (bass["pitch"] % 12).tolist() == [root]
        for track in piece.score.tracks:  # a tone of both chords may be held from the dominant on
            last = track.notes[-1]
            assert last["onset"] <= 6 * TICKS_PER_BEAT
            assert last["onset"] + last["duration"] == 8 * TICKS_PER_BEAT


@pytest.mark.parametrize("ending", ["open", "close"])
def test_the_last_note_of_a_kept_tune_is_the_tonic_above_its_root(ending):
    pieces = music_model(SONGS).generate(tune(*A_MINOR), keep="voice", ending=ending, num_samples=2)
    for piece in pieces:
        assert piece.score.tracks[0].notes["pitch"].tolist() == [*A_MINOR]
        bass, *others = classes_at_end(piece.score)
        assert bass == 9
        assert {*others} <= {0, 4}


def test_a_kept_tune_that_ends_elsewhere_closes_only_if_asked():
    score, model = tune(*A_MINOR[:-1], 76), music_model(SONGS)
    rests = []
    for ending in ("open", "close"):
        request = model.request(keep="voice", ending=ending)
        rests.append(last_tonic(request, model.prompt(score, request=request), 48))
    assert rests == [LastTonic(), LastTonic(180, Key(9, False))]


@pytest.mark.parametrize(
    ("name", "key", "fifths"), [("F#m", Key(6, False), 3), ("Eb", Key(3, True), -3)]
)
def test_a_new_piece_is_in_the_key_that_is_asked_for(name, key, fifths):
    model, tonic = music_model(SONGS), f"{ROOTS[key.tonic]}_{'M' if key.major else 'm'}"
    for ending in ("open", "close"):
        for piece in model.generate(None, key=name, bars=4, ending=ending, num_samples=2, seed=1):
            chords = {m.tick: chord_index(m.text) for m in piece.score.markers}
            assert chords[0] == chords[3 * 4 * TICKS_PER_BEAT] == chord_index(tonic)
            assert piece.score.key_signatures == [KeySignature(0, fifths, not key.major)]
            mode = b"\xff\x59\x02" + bytes([fifths % 256, not key.major])
            assert mode in piece.midi_file().data
            if ending == "close":
                triad = {(key.tonic + each) % 12 for each in (0, 7, 4 if key.major else 3)}
                assert {*classes_at_end(piece.score)} <= triad


def test_a_key_with_a_prompt_says_the_key_of_the_prompt():
    with pytest.raises(ParameterError, match=r"example\.mid is in C major"):
        music_model(SONGS).generate("example.mid", key="F#m", prompt_bars=4)
