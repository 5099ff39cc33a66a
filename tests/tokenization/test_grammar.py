import numpy as np
import pytest
import torch

from musicgen.composer import compose_groove, compose_pop
from musicgen.errors import UserError
from musicgen.midi import TEMPO, Score, TimeSignature, Track, notes_from
from musicgen.tokenization import METRES, REMI, Chorale, Groove2Groove, frozen_tokenizers
from musicgen.tokenization.grammar import NEVER
from tests.contracts.test_tokenizers import TINY

remi, groove, chorale = REMI(), Groove2Groove(), Chorale()
TINY_REMI, TINY_GROOVE = TINY["tiny remi"], TINY["tiny groove"]


def test_rows_of_unequal_length_are_accepted_independently():
    bar, beat, pitch, eos = map(remi.vocabulary.id, ("Bar", "Beat_3", "Pitch_60", "EOS"))
    pad = remi.vocabulary.pad_id
    good = [[bar, beat, pitch, pad], [eos, pad, pad, pad], [pad] * 4, [bar, bar, bar, beat]]
    bad = [[bar, pad, beat, pitch], [bar, beat, beat, pad], [bar, eos, pad, pad]]
    rows = torch.tensor(good + bad)
    accepted = remi.grammar().accepts(rows)
    assert accepted.tolist() == [True] * 4 + [False] * 3
    assert remi.grammar().accepts(rows[:, :0]).all()


def ids(tokenizer, text):
    return torch.tensor([[tokenizer.vocabulary.id(name) for name in text.split()]])


NOTE = "Pitch_60 Velocity_60 Duration_4"


@pytest.mark.parametrize(
    ("tokenizer", "text", "position"),
    [
        (remi, "Beat_0", 0), (remi, "Bar EOS", 1), (remi, "Bar Beat_1 Bar", 2), (remi, "PAD", 0),
        (remi, f"Bar Beat_3 {NOTE} Beat_3", 5), (remi, f"Bar Beat_3 {NOTE} {NOTE}", 5),
        (remi, f"Bar Beat_3 {NOTE} Tempo_119", 5), (remi, f"Bar Beat_3 {NOTE} Beat_4 {NOTE}", 6),
        (remi, "Bar Beat_0 Tempo_119 Chord_C_M", 3), (remi, "EOS Bar", 1),
        (remi, "Bar Beat_0 Chord_C_M Beat_1 Chord_C_M", 4),
        (remi, "Bar Beat_0 Tempo_119 Beat_1 Tempo_119", 4),
        (remi, "Bar Beat_0 Pitch_60 Duration_1", 3),
        (groove, "NoteOn_Bass_40", 0), (groove, "BOS BOS", 1), (groove, "BOS NoteOff_Bass_40", 1),
        (groove, "BOS NoteOn_Bass_40 EOS", 2), (groove, "BOS NoteOn_Bass_40 NoteOff_Bass_40", 2),
        (groove, "BOS NoteOn_Bass_40 NoteOn_Bass_40", 2), (groove, "BOS TimeShift_2_0 EOS", 2),
        (groove, "BOS NoteOn_Drums_36 NoteOn_Bass_40", 2),
        (groove, "BOS TimeShift_0_3 TimeShift_0_4", 2),
        (groove, "BOS TimeShift_1_0 TimeShift_1_0", 2),
        (groove, "BOS NoteOn_Bass_40 TimeShift_0_3 NoteOff_Bass_40 TimeShift_0_3", 4),
        (chorale, "Pitch_60", 0), (chorale, "BOS BOS", 1), (chorale, "BOS Pitch_60 EOS", 2),
        (chorale, "BOS Silence Silence Silence Silence EOS", 5), (chorale, "BOS EOS Pitch_60", 2),
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


def test_without_end_eos_is_allowed_only_where_nothing_else_is():
    grammar = remi.grammar()
    eos = remi.vocabulary.id("EOS")
    state = grammar.start(ids(remi, f"Bar Beat_0 {NOTE}"))
    assert grammar.allowed(state)[0, eos]
    assert not grammar.allowed(grammar.between(state, end=NEVER))[0, eos]
    last = ids(TINY_REMI, "Bar Bar Bar Beat_15 Pitch_63 Velocity_64 Duration_1")
    grammar = TINY_REMI.grammar()
    mask = grammar.allowed(grammar.between(grammar.start(last), end=NEVER))
    assert mask[0].nonzero().tolist() == [[eos]]


def test_the_maximum_length_is_reached_only_to_close_notes():
    grammar = TINY_GROOVE.grammar()  # of 5 beats
    to_limit = TINY_GROOVE.vocabulary.id("TimeShift_1_0")
    silent = grammar.start(ids(TINY_GROOVE, "BOS TimeShift_2_0 TimeShift_2_0"))
    assert not grammar.allowed(silent)[0, to_limit]
    text = "BOS NoteOn_Bass_40 NoteOn_Bass_41 TimeShift_2_0 TimeShift_2_0"
    sounding = grammar.start(ids(TINY_GROOVE, text))
    assert grammar.allowed(sounding)[0, to_limit]
    at_limit = grammar.advance(sounding, torch.tensor([to_limit]))
    first_off = TINY_GROOVE.vocabulary.id("NoteOff_Bass_40")
    assert grammar.allowed(at_limit)[0].nonzero().tolist() == [[first_off]]


def test_a_note_of_maximum_length_is_closed_before_anything_else():
    tokenizer = TINY["short notes"]  # 3 beats, drums 1
    text = "BOS NoteOn_Bass_40 NoteOn_Bass_41 NoteOn_Drums_36 TimeShift_0_6"

    def allowed(more, not_before=0):
        grammar = tokenizer.grammar()
        state = grammar.start(ids(tokenizer, f"{text} {more}"))
        mask = grammar.allowed(grammar.between(state, not_before))[0]
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


@pytest.mark.parametrize("name", ["groove2groove", "groove2groove_band"])
def test_pieces_with_long_notes_are_accepted(name):
    """Notes beyond the maximum are cut on encoding, so that every piece has a place in the grammar."""
    tokenizer = frozen_tokenizers()[name]
    score = compose_groove(0, "funk", 0, 0)
    for track in score.tracks:
        track.notes["duration"] *= 40
    tokens, summary = tokenizer.encode_with_summary(score)
    assert summary.clipped["notes longer than the maximum"]
    assert tokenizer.grammar().accepts(torch.from_numpy(tokens)[None]).all()


def test_no_note_hangs_under_random_logits():
    """Without any note-off of its own, a walk has no note beyond the maximum."""
    tokenizer = Groove2Groove(max_note_beats=2, max_drum_beats=1)
    grammar, pad = tokenizer.grammar(), tokenizer.vocabulary.pad_id
    random = torch.Generator().manual_seed(0)
    offs = torch.zeros(pad + 1)
    offs[tokenizer.families["NoteOff"].start : tokenizer.families["NoteOff"].stop] = -1e6
    offs[tokenizer.families["TimeShift"].start : tokenizer.families["TimeShift"].stop] = 6
    state = grammar.start(torch.tensor([[tokenizer.vocabulary.id("BOS")]]).repeat(8, 1))
    state = grammar.between(state, end=NEVER)
    columns = []
    for _ in range(600):
        logits = offs + 3 * torch.randn(8, pad + 1, generator=random)
        token = logits.masked_fill(~grammar.allowed(state), -torch.inf).argmax(dim=1)
        state = grammar.advance(state, token)
        columns.append(token)
    for row in torch.stack(columns, dim=1).numpy():
        score = tokenizer.decode(row)
        assert score.num_notes > 50
        for track in score.tracks:
            assert track.notes["duration"].max(initial=0) == 480 * (1 if track.is_drum else 2)


@pytest.mark.parametrize(
    ("tokenizer", "until"), [(REMI(max_bars=2), 32), (Groove2Groove(max_beats=8), 96)]
)
def test_a_prompt_of_maximum_length_can_only_end(tokenizer, until):
    score = compose_pop(0, 0) if tokenizer.name == "remi" else compose_groove(0, "funk", 0, 0)
    prompt = torch.from_numpy(tokenizer.until_end(tokenizer.encode(score)))[None]
    grammar = tokenizer.grammar()
    state = grammar.between(grammar.start(prompt), until)
    for _ in range(20):  # notes may have to be closed first
        allowed = grammar.allowed(state)
        assert allowed.any()
        token = allowed.int().argmax(dim=1)
        state = grammar.advance(state, token)
        if state.finished.all():
            break
    assert state.finished.all()


METRICAL = REMI(time_signatures=METRES, max_bars=40)
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


def drawn_names(
    tokens: torch.Tensor, *, tempo: bool, metre: bool, rows: int = 32, steps: int = 300
):
    """The names of uniformly drawn tokens after a prompt. [rows][steps]"""
    grammar, names = METRICAL.grammar(), METRICAL.vocabulary
    state = grammar.hold(grammar.start(tokens[None].expand(rows, -1)), tempo=tempo, metre=metre)
    state = grammar.between(state, end=NEVER)
    drawn, generator = [], torch.Generator().manual_seed(0)
    for _ in range(steps):
        allowed = grammar.allowed(state)
        assert allowed.any(dim=1).all()
        token = torch.multinomial(allowed.double(), 1, generator=generator)[:, 0]
        state = grammar.advance(state, token)
        drawn.append(token)
    columns = torch.stack(drawn, dim=1)
    assert grammar.accepts(torch.cat([tokens.expand(rows, -1), columns], dim=1)).all()
    return [[names.token(int(t)).split("_") for t in row] for row in columns]


def changes(rows, family):
    return {name[1] for row in rows for name in row if name[0] == family}


@pytest.mark.parametrize(("tempo", "metre"), [(True, True), (True, False), (False, True)])
def test_no_token_changes_what_is_held(tempo, metre):
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
