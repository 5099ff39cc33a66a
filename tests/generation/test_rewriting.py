"""Parts that are kept, and bars that are filled, in the user's own file."""

import itertools

import numpy as np
import pytest
import torch

from musicgen.errors import UserError
from musicgen.evaluation.generated_pieces import describe
from musicgen.generation.request import GenerationRequest
from musicgen.generation.rewriting import finished, rewritten_prompt
from musicgen.generation.sampler import Sampler
from musicgen.midi import TEMPO, Score, TimeSignature, Track, dumps, loads, notes_from
from musicgen.tokenization import REMI, Chorale, Groove2Groove
from musicgen.tokenization.chorale.frames import VOICES
from tests.generation.test_continuation import small_model

CHORALE = Chorale(lead_probability=0.5)
MODEL = small_model(CHORALE)
PIANO = REMI(velocity_bins=(30, 110, 20))
PIANO_MODEL = small_model(PIANO)
GROOVE = Groove2Groove()
GROOVE_MODEL = small_model(GROOVE)
BAR, NUM_BARS = 3 * 96, 5


def song(num_bars=NUM_BARS):
    """Voices in 3/4: notes of one to four eighths, some struck again, some sounding across bars."""
    rng = np.random.default_rng(0)
    tracks = []
    for voice, name in enumerate(VOICES):
        steps = rng.integers(1, 5, 6 * num_bars)
        ends = np.minimum(np.cumsum(steps), 6 * num_bars)
        rows = [
            (48 * int(start), 48 * int(end - start), 75 - 6 * voice + int(rng.integers(3)), 40 + i)
            for i, (start, end) in enumerate(itertools.pairwise([0, *np.unique(ends)]))
        ]
        tracks.append(Track(name, 10 + voice, notes=notes_from(rows)))
    tempos = np.array([(0, 60.0), (BAR, 120.0)], TEMPO)
    return Score(96, tracks, tempos, [TimeSignature(0, 3, 4)])


def band():
    """Twelve bars of 4/4 for three tracks; the piano plays 9 ticks early, and over every bar line."""
    rng = np.random.default_rng(1)
    piano = [(0, 90, 48, 70)]
    for beat in range(1, 48):
        pitches = rng.permutation(8)[:3] + 50
        piano += [(96 * beat - 9, 105, int(pitch), 50 + beat) for pitch in pitches]
    melody = [(192 * i + 48, 144, 72 + i % 3, 90) for i in range(24)]
    drums = [(48 * i, 12, 36 + i % 2, 100) for i in range(96)]
    tracks = [
        Track("Melody", 25, notes=notes_from(melody)),
        Track("Piano", 0, notes=notes_from(piano)),
    ]
    return Score(96, [*tracks, Track("Drums", 0, True, notes_from(drums))])


def write(score, prompt_bars=None, model=MODEL, tokenizer=CHORALE, **options):
    """The pieces of a request, and what their files hold."""
    request = GenerationRequest(**options)
    prompt = rewritten_prompt(
        tokenizer,
        score,
        "song.mid",
        request,
        prompt_bars=prompt_bars,
        data=dumps(score),
    )
    pieces = sorted(
        Sampler(model, tokenizer, request).continuations([prompt]), key=lambda c: c.sample
    )
    for piece in pieces:
        assert tokenizer.grammar().accepts(torch.from_numpy(piece.tokens)[None]).all()
    return pieces, [loads(piece.midi_file().data) for piece in pieces]


def rows_of(track, first=0, last=10**6):
    return [row for row in track.notes.tolist() if first <= row[0] < last]


@pytest.mark.parametrize("keep", ["soprano", ("Alto", "Bass")])
def test_kept_parts_stay_as_they_are_and_the_others_are_written(keep):
    score = song()
    names = [keep] if isinstance(keep, str) else [name.lower() for name in keep]
    pieces, files = write(score, keep=keep, num_samples=2, seed=3)
    assert pieces[0].tokens.tolist() != pieces[1].tokens.tolist()
    for piece, file in zip(pieces, files, strict=True):
        assert file.tempos.tolist() == score.tempos.tolist()
        assert file.time_signatures == score.time_signatures
        for track, own in zip(file.tracks, score.tracks, strict=True):
            assert (track.name, track.program) == (own.name, own.program)
            is_kept = own.name.lower() in names
            assert (track.notes.tolist() == own.notes.tolist()) == is_kept
        # The tokens are those of the file, kept parts included.
        held = CHORALE.decode(CHORALE.encode(score))
        for track, own in zip(piece.score.tracks, held.tracks, strict=True):
            if track.name.lower() in names:
                assert track == own
        new = [track for track in piece.score.tracks if track.name.lower() not in names]
        sixteenths = sum(int(track.notes["duration"].sum()) // 120 for track in new)
        assert piece.num_new_tokens == sixteenths


def test_a_tune_alone_gets_new_tracks():
    tune = Track("Flute", 73, notes=song().tracks[2].notes)  # at any height
    _, (file,) = write(Score(96, [tune]), keep="soprano")
    assert [track.name for track in file.tracks] == ["Flute", "Alto", "Tenor", "Bass"]
    assert file.tracks[0] == tune
    assert all(
        track.notes["velocity"][0] == np.median(tune.notes["velocity"]).astype(int)
        for track in file.tracks[1:]
        if len(track.notes)
    )


def test_the_row_of_a_rewritten_piece_counts_no_notes_of_a_beginning():
    (piece,), (file,) = write(song(), keep="soprano")
    row = describe(piece, file, {})
    assert row["bars"] == NUM_BARS
    assert "notes shown to the model" not in row


def test_first_bars_of_the_other_parts_are_kept_on_request():
    score = song()
    _, (file,) = write(score, keep="soprano", prompt_bars=2)
    for track, own in zip(file.tracks, score.tracks, strict=True):
        before = [
            (onset, min(duration, 2 * BAR - onset) if own.name != "Soprano" else duration, *rest)
            for onset, duration, *rest in rows_of(own, 0, 2 * BAR)
        ]
        assert rows_of(track, 0, 2 * BAR) == before


@pytest.mark.parametrize(
    ("fill", "tracks", "bars"),
    [
        (1, (), [(0, 1)]),
        (["2", 5, "3"], (), [(1, 3), (4, 5)]),
        ("2-3,5", "alto,bass", [(1, 3), (4, 5)]),
    ],
)
def test_only_the_filled_bars_change(fill, tracks, bars):
    score = song()
    pieces, files = write(score, fill=fill, tracks=tracks)
    for piece, file in zip(pieces, files, strict=True):
        assert file.tempos.tolist() == score.tempos.tolist()
        changed = False
        for track, own, new in zip(file.tracks, score.tracks, piece.new_score.tracks, strict=True):
            if tracks and own.name.lower() not in tracks:
                assert track == own
                continue
            expected = []
            for onset, duration, pitch, velocity in own.notes.tolist():
                if any(BAR * a <= onset < BAR * b for a, b in bars):
                    continue
                starts = [BAR * a for a, _ in bars if onset < BAR * a < onset + duration]
                expected.append((onset, min([onset + duration, *starts]) - onset, pitch, velocity))
            written = new.notes.tolist()
            for onset, duration, *_ in written:
                assert any(BAR * a <= onset < onset + duration <= BAR * b for a, b in bars)
            assert sorted(track.notes.tolist()) == sorted([*expected, *written])
            changed |= track != own
        assert changed


def test_notes_around_a_gap_choose_among_candidates(monkeypatch):
    """That with the lowest first pitch makes them a thousand nats more likely."""
    drawn, steps = [], Sampler.steps

    def weighed_steps(self, rows):
        yield from steps(self, rows)
        for row in rows:
            assert row.tokens[-64:] == row.context.follow(row.filled).tolist()
            assert row.log_weight == pytest.approx(sum(row.log_probs[-64:]))
            drawn.append(row.tokens[0])
            row.log_weight = -1000.0 * row.tokens[0]

    monkeypatch.setattr(Sampler, "steps", weighed_steps)
    pieces, _ = write(song(), fill="3", num_samples=4)
    assert len(drawn) == 4 * 16
    for i, piece in enumerate(pieces):
        assert piece.tokens[1 + 4 * 24] == min(drawn[16 * i : 16 * (i + 1)])


def written(pieces):
    return [[t.notes.tolist() for t in piece.new_score.tracks] for piece in pieces]


def test_what_follows_is_read_and_what_is_given_is_not_drawn():
    """Other music after the gap changes what is written; other music in the gap does not."""
    score = song()
    pieces, _ = write(score, fill="3", num_samples=4, batch_size=24)
    assert pieces[0].tokens.tolist() != pieces[1].tokens.tolist()
    other = song()
    for track in other.tracks:
        inside = (track.notes["onset"] >= 2 * BAR) & (track.notes["onset"] < 3 * BAR)
        track.notes["pitch"][inside] += 1
    same, _ = write(other, fill="3", num_samples=4)
    assert written(same) == written(pieces)
    for track in other.tracks:
        track.notes["pitch"][track.notes["onset"] >= 3 * BAR] += 12
    changed, _ = write(other, fill="3", num_samples=4)
    assert written(changed) != written(pieces)


@pytest.mark.parametrize(
    ("fill", "bars", "tracks"),
    [
        ("4-5", [(3, 5)], ()),
        ("1,10-12", [(0, 1), (9, 12)], ()),
        ("6", [(5, 6)], "melody"),
        ("6-7,9", [(5, 7), (8, 9)], "Piano"),
    ],
)
@pytest.mark.parametrize("name", ["piano", "groove"])
def test_bars_of_a_band_are_filled_in_its_own_tracks(name, fill, bars, tracks):
    """Everything else stays; a note belongs to the bar of its place on the grid."""
    score = band()
    model, tokenizer = {"piano": (PIANO_MODEL, PIANO), "groove": (GROOVE_MODEL, GROOVE)}[name]
    pieces, files = write(
        score, fill=fill, tracks=tracks, num_samples=2, model=model, tokenizer=tokenizer
    )
    early = 96 // (2 * tokenizer.steps_per_beat)
    for piece, file in zip(pieces, files, strict=True):
        new = [note for track in piece.new_score.tracks for note in track.notes.tolist()]
        assert len(new) > 3
        for onset, *_ in new:
            assert any(384 * a <= onset < 384 * b for a, b in bars)
        added = [note for track in file.tracks[3:] for note in track.notes.tolist()]
        for track, own in zip(file.tracks, score.tracks, strict=False):
            if (tracks and own.name.lower() not in tracks.lower()) or (
                name == "piano" and own.is_drum
            ):
                assert track == own
                continue
            expected = []
            for onset, duration, pitch, velocity in own.notes.tolist():
                if any(384 * a <= onset + early < 384 * b for a, b in bars):
                    continue
                cuts = [384 * a for a, _ in bars if onset + early < 384 * a < onset + duration]
                expected.append((onset, min([onset + duration, *cuts]) - onset, pitch, velocity))
            left = track.notes.tolist()
            for note in expected:
                left.remove(note)
            added += left
        assert sorted(added) == sorted(new)
        # What is written ends before the same key is struck at the edge, early.
        for a, b in bars:
            for onset, duration, *_ in new:
                assert not 384 * a <= onset < 384 * b or onset + duration <= 384 * b


@pytest.mark.parametrize(
    ("keep", "model", "tokenizer"),
    [
        ("melody", PIANO_MODEL, PIANO),
        ("drums,melody", GROOVE_MODEL, GROOVE),
        ("bass", GROOVE_MODEL, GROOVE),
    ],
)
def test_other_tracks_are_written_to_those_that_are_kept(keep, model, tokenizer):
    score = band()
    score.tracks.append(
        Track("Bass", 33, notes=notes_from([(384 * i, 300, 40, 80) for i in range(12)]))
    )
    (piece,), (file,) = write(score, keep=keep, prompt_bars=8, model=model, tokenizer=tokenizer)
    written = 0
    for track, own in zip(file.tracks, score.tracks, strict=False):
        if own.name.lower() in keep or (tokenizer is PIANO and own.is_drum):
            assert track == own
        else:
            end = 8 * 384 - 96 // (2 * tokenizer.steps_per_beat)
            before = [row[0] for row in rows_of(own, 0, end)]
            assert [row[0] for row in rows_of(track, 0, end)] == before
            written += len(track.notes) - len(before)
    assert written > 3
    held = [tokenizer.decode(tokenizer.encode(score)) for score in (score, file)]
    assert held[0].num_notes != held[1].num_notes
    assert piece.num_new_tokens > written


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fill": "13"}, "the piece has 12 bars"),
        ({"fill": "3", "keep": "melody"}, "expected no fill beside it"),
        ({"keep": "flute"}, "no part flute; expected some of Piano, Melody, Drums$"),
        ({"fill": "3", "tracks": "flute"}, "no part flute; expected some of"),
        ({"keep": "drums"}, "no note of drums, which is to be kept"),
    ],
)
def test_what_cannot_be_filled_is_one_line(options, words):
    with pytest.raises(UserError, match=words):
        write(band(), model=None, tokenizer=PIANO, **options)


def test_bars_of_another_metre_are_one_line():
    with pytest.raises(UserError, match="none of this model's, which are in 4/4"):
        write(song(), fill="2", model=None, tokenizer=PIANO)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fill": "9"}, "song.mid: fill: the piece has 5 bars"),
        ({"fill": "4-3"}, "fill=4-3: expected bars from 1 on"),
        ({"fill": "x"}, "expected bars from 1 on"),
        ({"keep": "flute"}, "no part flute; expected some of Soprano, Alto, Tenor, Bass"),
        ({"keep": "soprano,alto,tenor,bass"}, "none is left to write"),
        ({"keep": "soprano", "fill": "3"}, "expected no fill beside it"),
        ({"tracks": "alto"}, "expected fill beside it"),
        ({"keep": "soprano", "bars": 8}, "bars=8: expected to be left out"),
        ({"fill": "3", "best_of": 4}, "best_of=4: expected to be left out"),
        ({"fill": "3", "max_new_tokens": 9}, "max_new_tokens=9: expected to be left out"),
        ({"keep": "soprano", "prompt_bars": 5}, "nothing is left to write there"),
    ],
)
def test_what_cannot_be_written_is_one_line(options, words):
    with pytest.raises(UserError, match=words):
        write(song(), **options)


def test_pieces_that_are_no_voices_are_one_line():
    chords = Score(96, [Track("Piano", notes=notes_from([(0, 9, 60, 64), (0, 9, 64, 64)]))])
    with pytest.raises(UserError, match="1 tracks that are not voices"):
        write(chords, keep="soprano,bass")
    five = Score(96, [Track(f"{i}", notes=notes_from([(0, 9, 60 + i, 64)])) for i in range(5)])
    with pytest.raises(UserError, match="5 tracks that are not voices"):
        write(five, fill="1")
    alto = Score(96, [Track("Alto", notes=notes_from([(0, 9, 60, 64)])), Track("Soprano")])
    with pytest.raises(UserError, match="no note of soprano, which is to be kept"):
        write(alto, keep="soprano")


@pytest.mark.parametrize("options", [{"keep": "soprano"}, {"fill": "2", "tracks": "alto"}])
def test_models_that_have_not_learned_it_say_so(options):
    with pytest.raises(UserError, match="this model has not learned"):
        write(song(), tokenizer=Chorale(), model=None, **options)


def test_parts_that_are_left_empty_are_named():
    (piece,), _ = write(band(), keep="drums", prompt_bars=11, model=GROOVE_MODEL, tokenizer=GROOVE)
    assert piece.midi_file().notice == ""
    empty = finished(piece.prompt, 0, piece.prompt.tokens, piece.prompt.kept)
    line = "song.mid, sample 0: no note of Guitar, Piano was written"
    assert [empty.midi_file(keep).notice for keep in ("original", "tokens")] == [line] * 2
    assert empty.num_new_tokens == 0


def test_a_drummer_alone_gets_a_band():
    drums = Track("Drums", 0, True, notes_from(band().tracks[2].notes[:24].tolist()))  # 3 bars
    _, (file,) = write(Score(96, [drums]), keep="drums", model=GROOVE_MODEL, tokenizer=GROOVE)
    assert file.tracks[0] == drums
    assert sum(len(track.notes) for track in file.tracks[1:]) > 3


def test_silent_last_bars_are_filled_to_their_end():
    score = band()
    for track in score.tracks[:2]:
        track.notes = track.notes[track.notes["onset"] < 384 * 9]
    for model, tokenizer in (PIANO_MODEL, PIANO), (GROOVE_MODEL, GROOVE):
        (piece,), _ = write(score, fill="11-12", model=model, tokenizer=tokenizer)
        assert piece.prompt.gaps == (
            (40 * tokenizer.steps_per_beat, 48 * tokenizer.steps_per_beat),
        )
        assert piece.new_score.num_notes > 3


def test_pieces_neither_end_in_a_gap_nor_change_their_metre():
    options = {"allow_end": True, "hold_metre": False, "hold_tempo": False}
    score = band()
    tokenizer = REMI(time_signatures=("4/4", "3/4"), velocity_bins=(30, 110, 20))
    model = small_model(tokenizer)
    for request in {"keep": "melody", "prompt_bars": 8}, {"fill": "4-6"}:
        pieces, _ = write(
            score, model=model, tokenizer=tokenizer, num_samples=2, **request, **options
        )
        for piece in pieces:
            bars = tokenizer.bar_starts(piece.tokens, 16)
            assert bars.tolist() == list(range(0, 16 * 12, 16))
