import numpy as np
import pytest
import torch

from musicgen.composer import compose_groove, compose_pop
from musicgen.errors import UserError
from musicgen.generation.constraints import ConstrainedGrammar, end_constraints
from musicgen.midi import TEMPO, Score, TimeSignature, Track, notes_from
from musicgen.tokenization import REMI, TIME_SIGNATURES, Chorale, Groove2Groove
from musicgen.tokenization.bar_constraints import REMIChords
from musicgen.tokenization.bar_headers import FixedTempo, FixedTimeSignature
from tests.contracts.test_tokenizers import TINY
from tests.tokenization.conftest import random_walk

remi, groove, chorale = REMI(), Groove2Groove(), Chorale()


def ids(tokenizer, text):
    return torch.tensor([[tokenizer.vocabulary.id(name) for name in text.split()]])


NOTE = "Pitch_60 Velocity_60 Duration_4"


@pytest.mark.parametrize(
    ("tokenizer", "text", "position"),
    [
        (remi, "Beat_0", 0), (remi, "Bar EOS", 1), (remi, "PAD", 0),
        (remi, f"Bar Beat_3 {NOTE} Beat_4 {NOTE}", 6),
        (remi, "Bar Beat_0 Chord_C_M Beat_1 Chord_C_M", 4),
        (groove, "NoteOn_Bass_40", 0), (groove, "BOS NoteOn_Bass_40 NoteOff_Bass_40", 2),
        (groove, "BOS TimeShift_0_3 TimeShift_0_4", 2),
        (groove, "BOS NoteOn_Bass_40 TimeShift_0_3 NoteOff_Bass_40 TimeShift_0_3", 4),
        (chorale, "BOS BOS", 1), (chorale, "BOS Silence Silence Silence Silence EOS", 5),
    ],
)  # fmt: skip
def test_malformed_prompts_raise(tokenizer, text, position):
    first = {"remi": "Bar", "groove2groove": "BOS TimeShift_2_0", "chorale": "BOS Silence"}
    start, *more = first[tokenizer.name].split()
    length = len(text.split())
    good = ids(tokenizer, " ".join([start, *(more or [start]) * length][:length]))
    words = f"prompt 1, position {position}: {text.split()[position]} "
    with pytest.raises(UserError, match=words):
        tokenizer.grammar().start(torch.cat([good, ids(tokenizer, text)]))


def test_chords_follow_only_prompts_with_chords_or_without_notes():
    grammar = remi.grammar()
    grammar = ConstrainedGrammar(grammar, [REMIChords(grammar, [np.empty((0, 2), np.int64)])])
    chord, beat = remi.vocabulary.id("Chord_C_M"), remi.vocabulary.id("Beat_8")

    def may_have_chord(text):
        tokens = ids(remi, text) if text else torch.empty(1, 0, dtype=torch.long)
        state = grammar.start(tokens)
        if not text:
            state = grammar.advance(state, torch.tensor([remi.vocabulary.id("Bar")]))
        return bool(grammar.allowed(grammar.advance(state, torch.tensor([beat])))[0, chord])

    assert may_have_chord("")
    assert may_have_chord("Bar")
    assert may_have_chord("Bar Beat_0 Tempo_119")
    assert not may_have_chord(f"Bar Beat_0 {NOTE}")
    assert may_have_chord(f"Bar Beat_0 Chord_D_M {NOTE}")


def test_a_note_of_maximum_length_is_closed_before_anything_else():
    tokenizer = TINY["short notes"]  # 3 beats, drums 1
    text = "BOS NoteOn_Bass_40 NoteOn_Bass_41 NoteOn_Drums_36 TimeShift_0_6"

    def allowed(more, not_before=0):
        grammar = tokenizer.grammar()
        times = np.array([not_before]), np.array([0])
        grammar = ConstrainedGrammar(grammar, end_constraints(grammar, *times, None))
        mask = grammar.allowed(grammar.start(ids(tokenizer, f"{text} {more}")))[0]
        return {tokenizer.vocabulary.token(i) for i in mask.nonzero()[:, 0].tolist()}

    def shifts(names):
        return {name for name in names if name.startswith("TimeShift")}

    # The drum ends at tick 12, before which time may pass at will, and basses at tick 36.
    assert shifts(allowed("NoteOn_Drums_38")) == {f"TimeShift_0_{t}" for t in range(7, 12)} | {
        "TimeShift_1_0"
    }
    late = 60
    assert allowed("NoteOn_Drums_38", not_before=late) == {"TimeShift_1_0"}
    at_12 = "NoteOn_Drums_38 TimeShift_1_0"
    offs = {f"NoteOff_{voice}" for voice in ("Bass_40", "Bass_41", "Drums_36")}
    assert allowed(at_12) == allowed(at_12, not_before=late) == offs
    # A later voice would pass over the one that must end.
    assert "NoteOff_Drums_38" not in allowed(at_12)
    after = allowed(f"{at_12} NoteOff_Drums_36")
    assert "NoteOff_Drums_38" in after
    assert "NoteOn_Drums_36" in after
    assert shifts(after) == {f"TimeShift_0_{tick}" for tick in range(1, 7)}  # 38 ends at tick 18


def test_notes_of_a_track_end_at_the_length_that_is_given():
    tokenizer = Groove2Groove()
    grammar, shift = tokenizer.grammar(), tokenizer.families["TimeShift"]
    text = "BOS NoteOn_Bass_40 NoteOn_Piano_60 TimeShift_0_3 NoteOff_Piano_60 NoteOn_Strings_62"
    start = grammar.start(ids(tokenizer, text))

    def longest_shifts(lengths):
        """The ticks of the longest shift after each token; 0 without any."""
        states = [grammar.shorten(start, np.array([lengths]))]
        for token in "TimeShift_0_5", "NoteOff_Bass_40", "NoteOn_Piano_64":
            states.append(grammar.advance(states[-1], ids(tokenizer, token)[0]))
        masks = [grammar.allowed(state)[0, shift.start : shift.stop] for state in states]
        return [int(mask.nonzero().max()) + 1 if mask.any() else 0 for mask in masks]

    # The bass, at tick 0, ends at tick 5, before which nothing is due; the new note at tick 9.
    assert longest_shifts([5, 0, 0, 4, 0]) == [5, 0, 24, 9]
    assert longest_shifts([0] * 5) == [24, 0, 24, 24]


@pytest.mark.parametrize(
    ("tokenizer", "until"), [(REMI(max_bars=2), 32), (Groove2Groove(max_beats=8), 96)]
)
def test_a_prompt_of_maximum_length_can_only_end(tokenizer, until):
    score = compose_pop(0, 0) if tokenizer.name == "remi" else compose_groove(0, "funk", 0, 0)
    prompt = torch.from_numpy(tokenizer.until_end(tokenizer.encode(score)))[None]
    grammar = tokenizer.grammar()
    times = np.array([until]), np.array([0])
    grammar = ConstrainedGrammar(grammar, end_constraints(grammar, *times, None))
    state = grammar.start(prompt)
    for _ in range(20):  # notes may have to be closed first
        allowed = grammar.allowed(state)
        assert allowed.any()
        token = allowed.int().argmax(dim=1)
        state = grammar.advance(state, token)
        if state.finished.all():
            break
    assert state.finished.all()


METRICAL = REMI(time_signatures=TIME_SIGNATURES, max_bars=40)
BEAT = 480


def two_bars(*, tempo: bool = True) -> torch.Tensor:
    """One bar of 4/4 at 90 bpm, one of 3/4 at 120 bpm."""
    score = Score(
        BEAT,
        [Track(notes=notes_from([(beat * BEAT, BEAT, 60 + beat, 64) for beat in range(7)]))],
        np.array([(0, 90.0), (4 * BEAT, 120.0)] if tempo else [], dtype=TEMPO),
        [TimeSignature(0, 4, 4), TimeSignature(4 * BEAT, 3, 4)],
    )
    return torch.from_numpy(METRICAL.until_end(METRICAL.encode(score)))


def drawn_names(tokens: torch.Tensor, *, tempo: bool, metre: bool, rows: int = 32):
    """The names of random tokens after a prompt. [rows][steps]"""
    grammar, names = METRICAL.grammar(), METRICAL.vocabulary
    chords = REMIChords(grammar, [np.empty((0, 2), np.int64)] * rows)
    fixed = [FixedTempo(grammar)] * tempo + [FixedTimeSignature(grammar)] * metre
    grammar = ConstrainedGrammar(grammar, [chords, *fixed])
    state = grammar.start([tokens.numpy()] * rows)
    walked, _ = random_walk(METRICAL, rows, 300, 0, state, grammar)
    whole = np.concatenate([tokens.expand(rows, -1), walked], axis=1)
    METRICAL.grammar().start(whole)
    return [[names.token(int(t)).split("_") for t in row] for row in walked]


def changes(rows, family):
    return {name[1] for row in rows for name in row if name[0] == family}


@pytest.mark.parametrize(("tempo", "metre"), [(True, True), (True, False), (False, True)])
def test_no_token_changes_what_is_fixed(tempo, metre):
    rows = drawn_names(two_bars(), tempo=tempo, metre=metre)
    assert (changes(rows, "Bar") == {"3/4"}) == metre
    assert (changes(rows, "Tempo") == set()) == tempo
    assert changes(rows, "Pitch")


def test_a_prompt_without_a_tempo_gets_none():
    assert changes(drawn_names(two_bars(tempo=False), tempo=True, metre=True), "Tempo") == set()


def test_a_piece_from_nothing_takes_one_tempo_at_most():
    rows = drawn_names(torch.from_numpy(METRICAL.start_tokens()), tempo=True, metre=True)
    tempi = [[at for at, name in enumerate(row) if name[0] == "Tempo"] for row in rows]
    assert {len(found) for found in tempi} == {0, 1}
    for row, found in zip(rows, tempi, strict=True):
        assert all("Pitch" not in {name[0] for name in row[:at]} for at in found)
