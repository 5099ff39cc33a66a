"""Chorale's tokens by hand, the division of notes among voices, and its crops."""

import numpy as np
import torch

from musicgen.generation.constraints import ConstrainedGrammar, end_constraints
from musicgen.metrics.part_writing import part_writing
from musicgen.midi import Score, TimeSignature, Track, dumps, loads, notes_from
from musicgen.tokenization import Chorale
from musicgen.tokenization.chorale_grammar import NoParallels
from musicgen.tokenization.voices import score_of_frames
from tests.generation.builders import music_model

chorale, leading_chorale = Chorale(), Chorale(lead_probability=0.5)
SOPRANO, OUTER = [True, False, False, False], [True, False, False, True]
FRAMES = [[72, 67, 64, 48], [72, 67, 64, -1], [74, 67, 62, -1], [74, 67, 62, 50], [74, 67, 62, 50]]
NAMES = """
    BOS Pitch_72 Pitch_67 Pitch_64 Pitch_48 Pitch_72 Pitch_67 Pitch_64 Silence
    Pitch_74 Pitch_67 Pitch_62 Silence Pitch_74 Pitch_67 Pitch_62 Pitch_50
    Pitch_74 Pitch_67 Pitch_62 Pitch_50 EOS
"""
# Held pitches are single notes: (onset, duration, pitch, velocity) in ticks of 1/480.
VOICES = {
    "Soprano": [(0, 240, 72, 80), (240, 360, 74, 80)],
    "Alto": [(0, 600, 67, 80)],
    "Tenor": [(0, 240, 64, 80), (240, 360, 62, 80)],
    "Bass": [(0, 120, 48, 80), (360, 240, 50, 80)],
}
SCORE = Score(480, [Track(name, 52, notes=notes_from(rows)) for name, rows in VOICES.items()])


def names_of(tokens):
    return [chorale.vocabulary.token(int(token)) for token in tokens]


def frames_of(score):
    """The frames of an encoding as lists; -1 for silence."""
    pitches = [int(name.partition("_")[2] or -1) for name in names_of(chorale.encode(score))[1:-1]]
    return [pitches[i : i + 4] for i in range(0, len(pitches), 4)]


def test_tokens_by_hand():
    tokens, losses = chorale.encode_with_report(SCORE)
    assert names_of(tokens) == NAMES.split()
    assert not losses.summary().lossy
    assert (losses.summary().notes_read, losses.summary().notes_kept) == (7, 7)
    assert chorale.decode(tokens) == SCORE == score_of_frames(np.array(FRAMES))
    assert chorale.times(tokens).tolist() == [0] * 5 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 + [5]


def allowed_pitches(tokens):
    """The mask of pitches after tokens, by a grammar without parallels."""
    grammar = chorale.grammar()
    grammar = ConstrainedGrammar(grammar, [NoParallels(grammar)])
    return grammar.allowed(grammar.start([tokens]))[0, chorale.families["Pitch"]]


def test_parallels_by_hand():
    """After C5, F4, C3 and F3 the soprano goes to D5: what may the others not sing?"""
    pitches = (72, 65, 48, 53, 74, 64, 47)
    tokens = [chorale.vocabulary.id(name) for name in ("BOS", *(f"Pitch_{p}" for p in pitches))]
    # A fifth from D5, below or, crossed, above it; its octaves; octaves of the alto's E4.
    fifths, octaves = {31, 43, 55, 67, 81, 93, 105}, {26, 38, 50, 62, 74, 86, 98}
    of_alto = {28, 40, 52, 64, 76, 88, 100}
    for count, forbidden in (6, fifths), (7, octaves), (8, fifths | of_alto):
        assert {21 + int(i) for i in (~allowed_pitches(tokens[:count])).nonzero()} == forbidden
    stays = [*tokens[:5], tokens[1]]  # the soprano stays: no voice moves with it
    assert allowed_pitches(stays).all()


def test_music_without_parallels():
    """Random music of few pitches, in which parallels would be frequent; with voices ahead, too."""
    leading = leading_chorale
    headers = torch.tensor([leading.vocabulary.id("BOS"), *leading.families["Lead"]])
    few = [
        leading.vocabulary.id(f"{kind}_{p}") for kind in ("Pitch", "Ahead") for p in range(60, 73)
    ]
    few.append(leading.families["Empty"].start)
    parallels = []
    for forbids in (False, True):
        grammar, generator = leading.grammar(), torch.Generator().manual_seed(0)
        grammar = ConstrainedGrammar(grammar, [NoParallels(grammar)] if forbids else [])
        state, rows = grammar.start(headers[:, None]), [headers]
        for _ in range(4 * 80):
            allowed = grammar.allowed(state)
            weights = torch.zeros(allowed.shape)
            weights[:, few] = allowed[:, few].float()
            weights[:, few[-1]] *= 1e-9  # where there is nothing else
            rows.append(torch.multinomial(weights, 1, generator=generator)[:, 0])
            state = grammar.advance(state, rows[-1])
        scores = [leading.decode(row[: 1 + 4 * 60].numpy()) for row in torch.stack(rows, dim=1)]
        found = [part_writing(score) for score in scores]
        parallels.append([each["parallel_fifths"] + each["parallel_octaves"] for each in found])
    assert sum(parallels[0]) > 100
    assert max(parallels[1]) == 0


def test_an_incomplete_frame_is_left_out():
    tokens = chorale.encode(SCORE)
    for cut in range(9, 13):
        assert chorale.decode(tokens[:cut]) == chorale.decode(tokens[:9])


def part(name, *rows, program=0, drum=False):
    return Track(name, program, drum, notes_from([(*row, 64) for row in rows]))


def test_tracks_without_chords_are_voices_by_height():
    low, high = part("Cello", (0, 4, 48)), part("Violin", (0, 2, 76), (2, 2, 62))
    assert frames_of(Score(4, [low, high])) == [[76, -1, -1, 48]] * 2 + [[62, -1, -1, 48]] * 2
    middle = part("Viola", (1, 2, 60))
    assert frames_of(Score(4, [low, middle, high])) == [
        [76, -1, -1, 48],
        [76, -1, 60, 48],
        [62, -1, 60, 48],
        [62, -1, -1, 48],
    ]


def test_names_of_voices_precede_their_height():
    score = Score(4, [part("soprano", (0, 1, 40)), part(" BASS ", (0, 1, 80), (0, 1, 60))])
    _tokens, losses = chorale.encode_with_report(score)
    assert frames_of(score) == [[40, -1, -1, 80]]
    assert losses.summary().describe() == "1 note below another of their voice dropped"
    assert [chorale.find_track(track) for track in score.tracks] == [0, 3]
    assert chorale.find_track(Track("Alto", is_drum=True)) is None
    assert chorale.find_track(Track("Piano")) is None


def test_chords_of_one_track_are_led_as_voices():
    # The held C keeps its voice while others move; of six notes the outer ones are kept.
    held = [(0, 4, 72), (0, 1, 64), (0, 1, 48), (1, 2, 65), (1, 2, 50), (3, 1, 60)]
    assert frames_of(Score(4, [part("Piano", *held)])) == [
        [72, 64, -1, 48],
        [72, 65, -1, 50],
        [72, 65, -1, 50],
        [72, -1, 60, -1],
    ]
    cluster = part("Piano", *((0, 1, pitch) for pitch in (50, 55, 60, 64, 67, 72)))
    _tokens, losses = chorale.encode_with_report(Score(4, [cluster]))
    assert frames_of(Score(4, [cluster])) == [[72, 67, 55, 50]]
    assert losses.summary().describe() == "2 notes beyond four voices dropped"


def test_what_is_lost_is_counted():
    rows = [(0, 3, 60), (2, 2, 60), (4, 4, 60), (8, 1, 62), (39, 9, 62), (40, 1, 62), (9, 1, 20)]
    score = Score(4, [part("Flute", *rows), part("Drums", (0, 1, 38), drum=True)])
    tokens, losses = Chorale(max_beats=10).encode_with_report(score)
    assert len(tokens) == 2 + 4 * 40
    assert losses.summary().dropped == {
        "notes of drums": 1,
        "notes outside A0-C8": 1,
        "notes beyond beat 10": 1,
        "onsets of repeated notes": 2,
    }
    assert losses.summary().clipped == {
        "notes lasting beyond beat 10": 1,
        "notes overlapping the next of their voice": 1,
    }
    assert (losses.summary().notes_read, losses.summary().notes_kept) == (8, 5)


def test_bars_and_crops():
    frames = np.arange(60, 77)[:, None].repeat(4, axis=1)  # 17 frames: a bar and a sixteenth
    tokens = chorale.encode(score_of_frames(frames))
    assert chorale.bar_length(SCORE) == 16
    assert chorale.bar_length(Score(480, time_signatures=[TimeSignature(0, 3, 4)])) == 12
    assert chorale.bar_starts(tokens, 16).tolist() == [0, 16]
    assert chorale.bar_starts(tokens[:1], 16).tolist() == [0]
    starts = chorale.crops.starts(tokens, bar_length=16)
    assert starts.tolist() == [[0, 0], [64, -16]]
    assert [chorale.times(tokens)[i + 1] + offset for i, offset in starts.tolist()] == [0, 0]
    window = chorale.crops.crop(tokens, starts[1:], 99)
    assert names_of(window) == ["BOS", *["Pitch_76"] * 4, "EOS"]


def test_before_a_given_time_only_silence_fills_the_frames():
    grammar = chorale.grammar()
    tokens = torch.from_numpy(chorale.encode(SCORE)[:-1])[None]  # five frames

    def allowed(row, until):
        times = np.array([until]), np.array([0])
        constrained = ConstrainedGrammar(grammar, end_constraints(grammar, *times, None))
        mask = constrained.allowed(constrained.start(row))[0]
        return {
            chorale.vocabulary.token(i).partition("_")[0] for i in mask.nonzero()[:, 0].tolist()
        }

    assert allowed(tokens, 6) == {"Silence"}
    assert allowed(tokens, 5) == {"Pitch", "Silence", "EOS"}
    assert allowed(tokens[:, :-1], 5) == {"Silence"}


def test_a_piece_that_closes_ends_by_its_limit_with_a_frame_that_sounds():
    grammar, rng = chorale.grammar(), torch.Generator().manual_seed(0)
    state = grammar.start(torch.from_numpy(chorale.encode(SCORE)[:-1])[None])
    state = grammar.end_by(state.select(torch.zeros(8, dtype=torch.long)), torch.tensor([7]))
    tokens = []
    while not state.finished.all():
        mask = grammar.allowed(state).double()
        mask[:, chorale.vocabulary.id("Silence")] *= 50  # to try frames of silence
        tokens.append(torch.multinomial(mask, 1, generator=rng)[:, 0])
        state = grammar.advance(state, tokens[-1])
    assert int(state.time.max()) <= 7  # of EOS, where the last frame ends
    for row in torch.stack(tokens, 1).tolist():
        whole = np.append(chorale.encode(SCORE)[:-1], row)
        encoded = chorale.encode(chorale.decode(whole))
        assert encoded.tolist() == whole[: len(encoded)].tolist()
        assert set(whole[len(encoded) :]) <= {chorale.vocabulary.pad_id}


def test_a_leading_voice_is_a_bar_ahead(names):
    tokens = leading_chorale.encode(
        score_of_frames(np.array([[72, 67, 64, 48]] * 17 + [[-1, 67, 64, 50]]))
    )
    rest = "Empty Empty Empty"
    expected = ["Lead_Soprano", *[f"Ahead_72 {rest}"] * 16, "Ahead_72 Pitch_67 Pitch_64 Pitch_48"]
    expected += ["Empty Pitch_67 Pitch_64 Pitch_48"] * 16 + ["EOS"]  # the end is the soprano's
    moved = leading_chorale.lead(tokens, SOPRANO)
    assert names(leading_chorale, moved) == " ".join(expected)
    assert leading_chorale.times(moved)[[0, 1, 2, 5, 64, 65, 66, 69, 70, -1]].tolist() == [
        0, 0, 0, 1, 0, 16, 0, 17, 1, 17,
    ]  # fmt: skip
    # Of the beginning of a piece, as of a training crop.
    assert names(leading_chorale, leading_chorale.lead(tokens[:10], OUTER)) == (
        "Lead_Soprano+Bass Ahead_72 Empty Empty Ahead_48 Ahead_72 Empty Empty Ahead_48"
    )


def test_training_crops_are_arranged_as_often_as_asked():
    rng = np.random.default_rng(0)
    held = rng.integers(40, 80, (40, 4)).repeat(3, axis=0)
    tokens, kinds = leading_chorale.encode(score_of_frames(held)), []
    for number in range(200):
        length = [len(tokens) + 64, 300][number % 2]
        window = leading_chorale.rearrange(tokens[:length], rng)[:length]
        assert 0 < len(window) <= length
        leading_chorale.grammar().start(torch.from_numpy(window)[None])
        if length > len(tokens):
            assert window[-1] == leading_chorale.vocabulary.id("EOS")
        else:
            kinds.append(int(window[0]) in leading_chorale.families["Lead"])
    assert abs(sum(kinds) - 50) < 15
    assert np.array_equal(chorale.rearrange(tokens, rng), tokens)


def test_voices_without_names_go_on_in_their_tracks(tmp_path):
    rows = [(480 * i, 480, 0, 80) for i in range(8)]
    tracks = [
        Track("", notes=notes_from((*row[:2], pitch, 80) for row in rows))
        for pitch in (50, 72, 60, 66)  # in any order
    ]
    (tmp_path / "a.mid").write_bytes(dumps(Score(480, tracks)))
    (piece,) = music_model(Chorale()).generate(tmp_path / "a.mid", prompt_bars=2, bars=2)
    written = piece.midi_file()
    after = loads(written.data)
    assert not written.notice
    assert len(after.tracks) == 4
    for track, new in zip(after.tracks, (3, 0, 2, 1), strict=True):
        added = track.notes[track.notes["onset"] >= 8 * 480]
        expected = piece.new_on_grid.tracks[new].notes
        assert added["pitch"].tolist() == expected["pitch"].tolist()
