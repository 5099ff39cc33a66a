import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from musicgen.composer import compose_groove, compose_pop
from musicgen.errors import UserError
from musicgen.tokenization import REMI, Chorale, Groove2Groove, frozen_tokenizers
from musicgen.tokenization.grammar import NEVER, GrammarState

# Short pieces reach the maximum length; few tokens repeat often.
TINY_REMI = REMI(
    pitch_range=(60, 63), velocity_bins=(64, 64, 1), tempo_bins=(90, 93, 3), max_bars=3
)
TINY_GROOVE = Groove2Groove(tracks=[{"name": "Bass"}], max_beats=5)
TINY_SHORT_NOTES = Groove2Groove(
    tracks=[{"name": "Bass"}, {"name": "Drums", "is_drum": True}],
    max_beats=9,
    max_note_beats=3,
    max_drum_beats=1,
)
TINY_METRES = REMI(
    time_signatures=("3/4", "6/8", "2/4"),
    positions_per_beat=2,
    pitch_range=(60, 61),
    velocity_bins=(64, 64, 1),
    tempo_bins=None,
    chords=False,
    max_bars=4,
)
TINY_CHORALE = Chorale(max_beats=2)
TINY = [TINY_REMI, TINY_GROOVE, TINY_METRES, TINY_SHORT_NOTES, TINY_CHORALE]
TOKENIZERS = [REMI(), Groove2Groove(), *TINY, Chorale()]
IDS = ["remi", "groove", "tiny remi", "tiny groove", "tiny metres", "tiny short notes"]
IDS += ["tiny chorale", "chorale"]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=IDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_walks_decode_and_encode_to_themselves(tokenizer, seed, grammar_error, walk):
    rows, positions = walk(tokenizer, 24, 400, seed=seed)
    pad = tokenizer.vocabulary.pad_id
    for row, position in zip(rows, positions, strict=True):
        tokens = row[row != pad]
        assert np.array_equal(row[: len(tokens)], tokens), "PAD before the end"
        assert grammar_error(tokenizer, tokens, complete=True) is None
        assert tokenizer in TINY or len(tokens) > 400
        assert np.array_equal(tokenizer.encode(tokenizer.decode(tokens)), tokens)
        assert np.array_equal(tokenizer.times(row), position[:, 1])
        assert np.array_equal(
            tokenizer.coordinates(tokens, ("index", "time")), position[: len(tokens)]
        )
        assert (position[len(tokens) :, 0] == len(tokens) - 1).all(), "PAD does not count"


@pytest.mark.parametrize("tokenizer", TINY, ids=IDS[2:-1])
@pytest.mark.parametrize("steps", [3, 12, 40])
def test_the_grammar_accepts_exactly_the_encodings(tokenizer, steps, walk):
    """Pieces with one random error are accepted if and only if they decode and encode to themselves."""
    rng = np.random.default_rng(steps)
    rows, _ = walk(tokenizer, 150, steps, seed=steps)
    pad = tokenizer.vocabulary.pad_id
    damaged = []
    for row in np.repeat(rows, 4, axis=0):
        tokens = row[row != pad]
        at, other = rng.integers(len(tokens), size=2)
        new = rng.choice(tokens) if rng.random() < 0.5 else rng.integers(pad)
        damaged += [
            np.delete(tokens, at),
            np.insert(tokens, at, new),
            np.where(np.arange(len(tokens)) == at, new, tokens),
        ]
        tokens = tokens.copy()
        tokens[[at, other]] = tokens[[other, at]]
        damaged.append(tokens)
    damaged = [tokens for tokens in damaged if len(tokens)]
    batch = pad_sequence(list(map(torch.from_numpy, damaged)), True, padding_value=pad)
    complete = [tokens[-1] == tokenizer.vocabulary.id("EOS") for tokens in damaged]
    accepted = tokenizer.grammar().accepts(batch) & complete
    same = [np.array_equal(tokenizer.encode(tokenizer.decode(row)), row) for row in damaged]
    assert np.array_equal(accepted, same)
    assert 0 < accepted.sum() < len(damaged)


def test_rows_of_unequal_length_are_accepted_independently():
    remi = REMI()
    bar, beat, pitch, eos = map(remi.vocabulary.id, ("Bar", "Beat_3", "Pitch_60", "EOS"))
    pad = remi.vocabulary.pad_id
    rows = torch.tensor(
        [
            [bar, beat, pitch, pad],  # the beginning of a piece
            [eos, pad, pad, pad],
            [pad, pad, pad, pad],
            [bar, bar, bar, beat],
            [bar, pad, beat, pitch],
            [bar, beat, beat, pad],
            [bar, eos, pad, pad],
        ]
    )
    accepted = remi.grammar().accepts(rows)
    assert accepted.tolist() == [True] * 4 + [False] * 3
    assert remi.grammar().accepts(rows[:, :0]).all()


def ids(tokenizer, text):
    return torch.tensor([[tokenizer.vocabulary.id(name) for name in text.split()]])


NOTE = "Pitch_60 Velocity_60 Duration_4"


MALFORMED = {
    TOKENIZERS[0]: [
        ("Beat_0", 0),
        ("Bar EOS", 1),
        ("Bar Beat_1 Bar", 2),
        (f"Bar Beat_3 {NOTE} Beat_3", 5),
        (f"Bar Beat_3 {NOTE} {NOTE}", 5),
        (f"Bar Beat_3 {NOTE} Tempo_119", 5),
        (f"Bar Beat_3 {NOTE} Beat_4 {NOTE}", 6),
        ("Bar Beat_0 Tempo_119 Chord_C_M", 3),
        ("Bar Beat_0 Chord_C_M Beat_1 Chord_C_M", 4),
        ("Bar Beat_0 Tempo_119 Beat_1 Tempo_119", 4),
        ("Bar Beat_0 Pitch_60 Duration_1", 3),
        ("EOS Bar", 1),
        ("PAD", 0),
    ],
    TOKENIZERS[1]: [
        ("NoteOn_Bass_40", 0),
        ("BOS BOS", 1),
        ("BOS NoteOff_Bass_40", 1),
        ("BOS NoteOn_Bass_40 EOS", 2),
        ("BOS NoteOn_Bass_40 NoteOff_Bass_40", 2),
        ("BOS NoteOn_Bass_40 NoteOn_Bass_40", 2),
        ("BOS NoteOn_Drums_36 NoteOn_Bass_40", 2),
        ("BOS TimeShift_0_3 TimeShift_0_4", 2),
        ("BOS TimeShift_1_0 TimeShift_1_0", 2),
        ("BOS TimeShift_2_0 EOS", 2),
        ("BOS NoteOn_Bass_40 TimeShift_0_3 NoteOff_Bass_40 TimeShift_0_3", 4),
    ],
    TOKENIZERS[-1]: [
        ("Pitch_60", 0),
        ("BOS BOS", 1),
        ("BOS Silence Silence Silence Silence EOS", 5),
        ("BOS Pitch_60 EOS", 2),
        ("BOS EOS Pitch_60", 2),
    ],
}


@pytest.mark.parametrize(
    ("tokenizer", "text", "position"),
    [(tokenizer, *row) for tokenizer, rows in MALFORMED.items() for row in rows],
)
def test_malformed_prompts_raise(tokenizer, text, position):
    first = {"remi": "Bar", "groove2groove": "BOS TimeShift_2_0", "chorale": "BOS Silence"}
    start, *more = first[tokenizer.name].split()
    length = len(text.split())
    good = ids(tokenizer, " ".join([start, *(more or [start]) * length][:length]))
    words = f"prompt 1, position {position}: {text.split()[position]} "
    with pytest.raises(UserError, match=words):
        tokenizer.grammar().start(torch.cat([good, ids(tokenizer, text)]))


def test_chords_follow_only_prompts_with_chords_or_without_notes():
    remi = REMI()
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


@pytest.mark.parametrize("tokenizer", TOKENIZERS[:2], ids=IDS[:2])
def test_forked_states_are_independent(tokenizer, walk):
    grammar = tokenizer.grammar()
    rows = torch.from_numpy(walk(tokenizer, 2, 60, seed=3)[0])
    left = rows[:1, rows[0] != tokenizer.vocabulary.pad_id]
    state = grammar.start(left[:, :30])
    before = {name: value.copy() for name, value in vars(state).items()}
    forks = state.select(torch.tensor([0, 0, 0]))
    mask = grammar.allowed(state)
    grammar.allowed(grammar.between(state, end=NEVER))
    for choice in mask[0].nonzero()[:, 0][:20]:
        grammar.advance(state, choice[None])
    assert all(np.array_equal(before[name], value) for name, value in vars(state).items())

    # Rows that are forked, advanced and concatenated equal rows that advance alone.
    choices = mask[0].nonzero()[[0, -1, 0], 0]
    advanced = grammar.advance(forks, choices)
    alone = [grammar.advance(state, choice[None]) for choice in choices]
    stacked = type(state).cat(alone)
    assert isinstance(stacked, GrammarState)
    for name, value in vars(advanced).items():
        assert np.array_equal(value, getattr(stacked, name)), name
    assert torch.equal(grammar.allowed(advanced), grammar.allowed(stacked))


@pytest.mark.parametrize("tokenizer", TOKENIZERS[:2], ids=IDS[:2])
def test_a_finished_row_takes_only_pad(tokenizer, walk):
    grammar = tokenizer.grammar()
    pad = tokenizer.vocabulary.pad_id
    rows = torch.from_numpy(walk(tokenizer, 4, 50, seed=5)[0])  # chords are used, or none exist
    state = grammar.start(rows)
    assert state.finished.all()
    for end in (0, NEVER):
        mask = grammar.allowed(grammar.between(state, end=end))
        assert mask[:, pad].all()
        assert mask.sum() == 4
    after = grammar.advance(state, torch.full((4,), pad))
    assert np.array_equal(after.positions, state.positions)
    assert after.finished.all()
    assert torch.equal(grammar.allowed(after), mask)


def test_without_end_eos_is_allowed_only_where_nothing_else_is():
    remi = REMI()
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
    tokenizer = TINY_SHORT_NOTES  # 3 beats, drums 1
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
