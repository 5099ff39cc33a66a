"""Voices that are kept, to which the model writes the others."""

import itertools

import numpy as np
import pytest
import torch

from musicgen.errors import UserError
from musicgen.midi import TEMPO, Score, TimeSignature, Track, loads, notes_from
from musicgen.tokenization import REMI, Chorale, Groove2Groove
from musicgen.tokenization.chorale.frames import VOICES
from tests.generation.builders import music_model

CHORALE = Chorale(lead_probability=0.5)
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


def write(score, tokenizer=CHORALE, **options):
    """The pieces of a request, and what their files hold."""
    pieces = music_model(tokenizer).generate(score, **options)
    for piece in pieces:
        assert tokenizer.grammar().accepts(torch.from_numpy(piece.tokens)[None]).all()
    return pieces, [loads(piece.midi_file()[0]) for piece in pieces]


@pytest.mark.parametrize("keep", ["soprano", ("Alto", "Bass")])
@pytest.mark.parametrize("avoid_parallels", [False, True])
def test_kept_voices_stay_as_they_are_and_the_others_are_written(keep, avoid_parallels):
    score = song()
    names = [keep] if isinstance(keep, str) else [name.lower() for name in keep]
    options = {"num_samples": 2, "seed": 3, "avoid_parallels": avoid_parallels}
    pieces, files = write(score, keep=keep, **options)
    assert pieces[0].tokens.tolist() != pieces[1].tokens.tolist()
    held = CHORALE.decode(CHORALE.encode(score))
    for piece, file in zip(pieces, files, strict=True):
        assert file.tempos.tolist() == score.tempos.tolist()
        assert file.time_signatures == score.time_signatures
        for track, own in zip(file.tracks, score.tracks, strict=True):
            assert (track.name, track.program) == (own.name, own.program)
            is_kept = own.name.lower() in names
            assert (track.notes.tolist() == own.notes.tolist()) == is_kept
        for track, own in zip(piece.score.tracks, held.tracks, strict=True):
            if track.name.lower() in names:
                assert track == own
        new = {t.name for t in piece.new_score.tracks if len(t.notes)}
        assert not {name.lower() for name in new} & {*names}
        assert new
        # One token for each sixteenth of a voice, and none that was given.
        assert piece.num_new_tokens == (4 - len(names)) * 12 * NUM_BARS
    same, _ = write(score, keep=keep, batch_size=1, **options)
    assert [piece.tokens.tolist() for piece in same] == [piece.tokens.tolist() for piece in pieces]


def test_voices_without_a_new_note_are_named():
    model = music_model(CHORALE)
    names = CHORALE.vocabulary.tokens
    silent = [i for i, name in enumerate(names) if name.startswith(("Pitch_", "Ahead_"))]
    model.model.head.bias.data[silent] = -1e4
    (piece,) = model.generate(song(), keep="soprano")
    assert piece.notice == "prompt 0, continuation 1: no notes for Alto, Tenor, Bass"


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


def test_first_bars_of_the_other_voices_are_kept_on_request():
    score = song()
    (piece,), (file,) = write(score, keep="soprano", prompt_bars=2)
    assert (piece.prompt.end_time, piece.midi_file()[1]) == (24, 2 * BAR)
    held = CHORALE.decode(CHORALE.encode(score))
    changed = False
    for track, own in zip(piece.score.tracks, held.tracks, strict=True):
        begun = [t.notes[t.notes["onset"] < 2 * 1440] for t in (track, own)]
        assert begun[0]["pitch"].tolist() == begun[1]["pitch"].tolist()
        assert begun[0]["onset"].tolist() == begun[1]["onset"].tolist()
        changed |= track != own
    assert changed
    assert file.tracks[0] == score.tracks[0]


CHORDS = Score(96, [Track("Piano", notes=notes_from([(0, 9, 60, 64), (0, 9, 64, 64)]))])
ALTO = Score(96, [Track("Alto", notes=notes_from([(0, 9, 60, 64)])), Track("Soprano")])


@pytest.mark.parametrize(
    ("score", "options", "words"),
    [
        (
            song(),
            {"keep": "flute"},
            "keep=flute: expected one to three of Soprano, Alto, Tenor, Bass",
        ),
        (song(), {"keep": "soprano", "prompt_bars": 5}, "nothing is left to write"),
        (CHORDS, {"keep": "soprano,bass"}, "1 tracks that are not voices"),
        (ALTO, {"keep": "soprano"}, "no note of soprano, which is to be kept"),
    ],
)
def test_what_cannot_be_written_is_one_line(score, options, words):
    with pytest.raises(UserError, match=words):
        write(score, **options)


@pytest.mark.parametrize("tokenizer", [Chorale(), REMI(), Groove2Groove()], ids=lambda t: t.name)
def test_models_that_have_not_learned_it_name_one_that_has(tokenizer):
    with pytest.raises(UserError, match=r"keep.*such as checkpoint=bach-chorales"):
        write(song(), tokenizer, keep="soprano")
    with pytest.raises(UserError, match="keep writes to parts of a piece"):
        music_model(tokenizer).generate(keep="soprano")
