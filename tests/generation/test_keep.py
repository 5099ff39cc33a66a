"""Voices that are kept, to which the model writes the others."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from musicgen.errors import UserError
from musicgen.generation.request import PieceParams
from musicgen.midi import (
    TEMPO,
    KeySignature,
    Marker,
    Score,
    TimeSignature,
    Track,
    dumps,
    loads,
    notes_from,
)
from musicgen.random import NoiseKey
from musicgen.report.html import Kept, score_payload
from musicgen.tokenization import REMI, Chorale, Groove2Groove
from musicgen.tokenization.voices import VOICES
from tests.generation.builders import allowed_tokens, music_model
from tests.tokenizers import frozen_tokenizers

CHORALE, SONGS = Chorale(lead_probability=0.5), frozen_tokenizers()["songs"]
PARTS = frozen_tokenizers()["quartet"]
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
    """The pieces of a request, and what their files hold, which are no others for a score's file."""
    pieces = music_model(tokenizer).generate(score, **options)
    files = [loads(piece.midi_file().data) for piece in pieces]
    for piece, file in zip(pieces, files, strict=True):
        tokenizer.grammar().start(piece.tokens[None])
        if piece.prompt.kept:
            source = dataclasses.replace(piece.prompt.source, data=dumps(score))
            prompt = dataclasses.replace(piece.prompt, source=source)
            data, _, notice, _ = dataclasses.replace(piece, prompt=prompt).midi_file()
            same = dataclasses.replace(file, key_signatures=score.key_signatures)
            assert (loads(data), notice) == (same, "")
    return pieces, files


@pytest.mark.parametrize("keep", ["soprano", ("Alto", "Bass")])
@pytest.mark.parametrize("avoid_parallels", [False, True])
def test_kept_voices_stay_as_they_are_and_the_others_are_written(keep, avoid_parallels):
    num_bars = 3
    score = song(num_bars)
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
            assert (track.notes.tolist() == own.notes.tolist()) == (own.name.lower() in names)
        for track, own in zip(piece.score.tracks, held.tracks, strict=True):
            if track.name.lower() in names:
                assert track == own
        new = {t.name for t in piece.new_score.tracks if len(t.notes)}
        assert not {name.lower() for name in new} & {*names}
        assert new
        # One token for each sixteenth of a voice, and none that was given.
        assert piece.num_new_tokens == (4 - len(names)) * 12 * num_bars
    same, _ = write(score, keep=keep, batch_size=1, **options)
    assert [piece.tokens.tolist() for piece in same] == [piece.tokens.tolist() for piece in pieces]


def test_voices_without_a_new_note_are_named():
    model = music_model(CHORALE)
    names = CHORALE.vocabulary.tokens
    silent = [i for i, name in enumerate(names) if name.startswith(("Pitch_", "Ahead_"))]
    model.model.head.bias.data[silent] = -1e4
    (piece,) = model.generate(song(), keep="soprano")
    assert piece.notice == (
        "prompt 0, continuation 1: no notes for Alto, Tenor, Bass; prompt_bars=8 keeps first bars "
        "of these parts, to go on from"
    )
    (score := song()).tracks[1].notes = song().tracks[1].notes[:1]  # then the alto rests
    (piece,) = model.generate(score, keep="soprano", prompt_bars=2)
    assert piece.notice.endswith("no notes for Tenor, Bass")
    piece.score.tracks[3].notes["duration"][-1] += 2 * 1440  # it goes on over the bar line
    assert piece.notice.endswith("no notes for Tenor")


def test_a_part_that_stays_silent_in_rewritten_bars_has_no_cure():
    model = music_model(SONGS)
    model.model.head.bias.data[SONGS.families["Part"]] = -99
    (piece,) = model.generate(accompanied(), rewrite="1-2")
    assert piece.notice.endswith("no notes for Voice, Piano")


def test_a_tune_alone_gets_new_tracks():
    tune = Track("Flute", 73, notes=song().tracks[2].notes)  # at any height
    _, (file,) = write(Score(96, [tune]), keep="soprano")
    assert [track.name for track in file.tracks] == ["Flute", "Alto", "Tenor", "Bass"]
    assert file.tracks[0] == tune
    new = np.concatenate([track.notes["velocity"] for track in file.tracks[1:]])
    assert {*new.tolist()} <= {*tune.notes["velocity"].tolist()}


def test_first_bars_of_the_other_voices_are_kept_on_request():
    score = song()
    (piece,), (file,) = write(score, keep="soprano", prompt_bars=2)
    assert (piece.prompt.end.step, piece.midi_file().prompt_end) == (24, 2 * BAR)
    held = CHORALE.decode(CHORALE.encode(score))
    assert piece.score.tracks != held.tracks
    for track, own in zip(piece.score.tracks, held.tracks, strict=True):
        begun = [t.notes[t.notes["onset"] < 2 * 1440] for t in (track, own)]
        assert begun[0][["onset", "pitch"]].tolist() == begun[1][["onset", "pitch"]].tolist()
    assert file.tracks[0] == score.tracks[0]
    for track, own in zip(file.tracks[1:], score.tracks[1:], strict=True):
        kept = [(on, min(length, 2 * BAR - on), *rest) for on, length, *rest in own.notes.tolist()]
        assert notes_between(track, 0, 2 * BAR) == [row for row in kept if row[0] < 2 * BAR]


CHORDS = Score(96, [Track("Piano", notes=notes_from([(0, 9, 60, 64), (0, 9, 64, 64)]))])
ALTO = Score(96, [Track("Alto", notes=notes_from([(0, 9, 60, 64)])), Track("Soprano")])


def test_other_tracks_than_the_named_voices_stay():
    score = song()
    (alone,), _ = write(score, keep="soprano")
    score.tracks += CHORDS.tracks
    (piece,), (file,) = write(score, keep="soprano")
    assert piece.tokens.tolist() == alone.tokens.tolist()
    assert file.tracks[-1:] == CHORDS.tracks


@pytest.mark.parametrize("tokenizer", [Chorale(), REMI(), Groove2Groove()], ids=lambda t: t.name)
def test_models_that_have_not_learned_it_name_one_that_has(tokenizer):
    with pytest.raises(UserError, match=r"keep.*such as checkpoint=bach-chorales"):
        write(song(), tokenizer, keep="soprano")
    with pytest.raises(UserError, match="keep writes to parts of a piece"):
        music_model(tokenizer).generate(keep="soprano")


LINES = [0, 288, 576, 768, 960]  # two bars of 3/4, then of 2/4


def accompanied():
    """A voice that rests in the last bar, a piano of two tracks, and a noise that no part plays."""
    voice = [(0, 96, 70, 90), (400, 90, 72, 91), (672, 90, 69, 90)]
    hands = ([(96 * i, 90, low + 7 * i % 12, 40 + low) for i in range(10)] for low in (60, 36))
    tracks = [Track("Singstimme", notes=notes_from(voice))]
    tracks += [Track("Klavier", notes=notes_from(rows)) for rows in hands]
    tracks.append(Track("Sea", 122, notes=notes_from([(5, 5, 60, 3)])))
    metres = [TimeSignature(0, 3, 4), TimeSignature(576, 2, 4)]
    return Score(96, tracks, np.array([(0, 80.0)], TEMPO), metres)


def notes_between(track, first, end):
    return [row for row in track.notes.tolist() if first <= row[0] < end]


@pytest.mark.parametrize(
    ("options", "bars"),
    [
        ({"keep": "voice"}, (0, 4)),
        ({"keep": "voice", "prompt_bars": 2}, (2, 4)),
        ({"keep": "piano", "key": "Eb"}, (0, 4)),
        ({"rewrite": "2-3"}, (1, 3)),
        ({"rewrite": 2, "keep": "voice", "chords": "C Am | F"}, (1, 2)),
        ({"keep": "voice", "chords": "C Am | F"}, (0, 4)),
    ],
    ids=str,
)
def test_of_a_song_only_the_parts_and_bars_asked_for_are_written(options, bars):
    score = accompanied()
    (piece,), (file,) = write(score, SONGS, **options, seed=3)
    kept = {"voice": [0], "piano": [1, 2]}.get(options.get("keep"), [])
    first, end = (LINES[bar] for bar in bars)
    assert file.tempos.tolist() == score.tempos.tolist()
    assert file.time_signatures == score.time_signatures
    others, played = [], [{90, 91}, {100, 76}, {100, 76}]  # velocities of voice and piano
    for number, (track, own) in enumerate(zip(file.tracks, score.tracks, strict=True)):
        assert (track.name, track.program) == (own.name, own.program)
        for span in ((0, first), (end, 9999)):
            assert notes_between(track, *span) == notes_between(own, *span)
        if number in [*kept, 3]:
            assert track == own
        else:
            new = notes_between(track, first, end)
            assert {row[3] for row in new} <= played[number]
            others += new
    assert others
    assert piece.new_score.num_notes == len(others)
    given = piece.prompt.kept.conditioning.ids[:-1]  # without the bar that would follow
    assert piece.num_new_tokens == len(piece.tokens) - (given >= 0).sum()
    told_apart = score_payload(file, 0, kept=Kept(piece.prompt.kept.unchanged))["tracks"]
    assert sum(track["kept"].count(0) for track in told_apart) == len(others)
    # The bars are the file's, and so are the chords that were asked for.
    lines = SONGS.bar_starts(piece.tokens, 36).tolist()
    assert lines == [line // 8 for line in LINES[: len(lines)]]
    assert len(lines) == bars[1]
    if "chords" in options:
        step, length = first, LINES[bars[0] + 1] - first
        asked = [(step, "C_M"), (step + length // 2, "A_m"), (step + length, "F_M")]
        found = [marker for marker in file.markers if marker.tick < end]
        assert found[:3] == [Marker(*each) for each in asked if each[0] < end]
        in_tokens = [Marker(m.tick // 5, m.text) for m in piece.score.markers]
        assert in_tokens == found
    assert "key" not in options or SONGS.vocabulary.id("Key_-3") in piece.tokens[:9]


@pytest.mark.parametrize("prompt_bars", [None, 2])
@pytest.mark.parametrize(("first", "end"), [(0, 192), (480, 576)], ids=["upbeat", "cut bar"])
def test_an_incomplete_bar_of_a_song_is_as_long_as_in_the_file(first, end, prompt_bars):
    def shorter(ticks):
        return np.where(ticks < end, np.minimum(ticks, first), ticks - (end - first))

    def cut(track):
        rows = [row for row in track.notes.tolist() if not first <= row[0] < end]
        times = [(shorter(row[0]), shorter(row[0] + row[1])) for row in rows]
        rows = [(on, off - on, *row[2:]) for (on, off), row in zip(times, rows, strict=True)]
        return dataclasses.replace(track, notes=notes_from(rows))

    rests = accompanied()  # where it is cut
    rests.tracks[0].notes = notes_from([(192, 96, 70, 90), (672, 90, 69, 90)])
    for track in rests.tracks:
        onset = track.notes["onset"]
        track.notes = track.notes[(onset < first) | (onset >= end)]
    metres = [s._replace(tick=int(shorter(s.tick))) for s in rests.time_signatures]
    if not first:
        metres[0] = TimeSignature(96, 3, 4)
    tracks = [*map(cut, rests.tracks)]
    incomplete = dataclasses.replace(rests, tracks=tracks, time_signatures=metres)
    options = {"keep": "voice", "prompt_bars": prompt_bars, "seed": 1}
    (whole,), (file,) = write(rests, SONGS, **options)
    (piece,), (found,) = write(incomplete, SONGS, **options)
    assert piece.tokens.tolist() == whole.tokens.tolist()
    assert found.tracks == [*map(cut, file.tracks)]
    assert found.time_signatures == metres


@pytest.mark.parametrize(
    ("metre", "bars", "span", "steps"),
    [
        ((13, 16), "2", (312, 624), 48),
        ((13, 16), "4", (936, 1248), 48),
        ((3, 4), 2, (288, 576), 36),
    ],
)
def test_bars_of_any_metre_are_rewritten_whole(metre, bars, span, steps):
    score = accompanied()
    score.time_signatures = [TimeSignature(0, 15, 2), TimeSignature(0, *metre)]  # the last counts
    (piece,), (file,) = write(score, SONGS, rewrite=bars, seed=1)
    assert (piece.prompt.kept.span, piece.prompt.bar_length) == (span, steps)
    for track, own in zip(file.tracks, score.tracks, strict=True):
        for others in ((0, span[0]), (span[1], 9999)):
            assert notes_between(track, *others) == notes_between(own, *others)


@pytest.mark.parametrize(("ticks", "upbeat"), [(480, 300), (1, 4)], ids=["off the grid", "coarse"])
def test_a_bar_that_is_off_the_grid_is_the_one_that_is_rewritten(ticks, upbeat):
    """Of a piece without tempo and key, of which nothing else may be given."""
    rows = [(ticks * i, ticks, 60 + i % 7, 64) for i in range(1, 20)]
    metres = [TimeSignature(0, 4, 4), TimeSignature(upbeat, 3, 4)]
    score = Score(ticks, [Track("Piano", notes=notes_from(rows))], time_signatures=metres)
    for bar in (1, 2, 3):
        (piece,), (file,) = write(score, SONGS, rewrite=bar, seed=1)
        assert len(SONGS.bar_starts(piece.tokens, 36)) == bar
        assert (piece.prompt.kept.conditioning.ids < 0).sum() == 1
        assert all(0 not in track.notes["duration"] for track in file.tracks)


@pytest.mark.parametrize(("options", "tick"), [({"keep": "voice"}, 576), ({"rewrite": 2}, 0)])
def test_where_the_file_has_chords_there_are_no_others(options, tick):
    model, score = music_model(SONGS, "auto"), accompanied()
    model.model.head.bias.data[SONGS.vocabulary.id("Part_Chords")] = 99
    score.markers = [Marker(tick, "G_M")]
    (piece,) = model.generate(score, **options)
    *before, last = [(marker.tick // 5, marker.text) for marker in piece.score.markers]
    assert (last, len(before) > 0) == ((tick, "G_M"), tick > 0)
    assert loads(piece.midi_file().data).markers == score.markers


def test_a_continuation_is_of_the_parts_of_its_piece():
    alone = accompanied()
    alone.tracks = alone.tracks[1:3]  # both hands of the piano
    pieces, _ = write([accompanied(), alone], SONGS, prompt_bars=1, bars=8, temperature=3)
    for piece, parts in zip(pieces, ({"Voice", "Piano"}, {"Piano"}), strict=True):
        assert {t.name for t in piece.new_score.tracks if len(t.notes)} <= parts


def test_a_bar_ends_where_the_model_would_end_it_before_another_time_signature():
    """Notes would pile up if the mask shared the probability of a bar in 3/4 among them."""
    model = music_model(SONGS)
    model.model.head.bias.data[SONGS.vocabulary.id("Bar_3/4")] = 99
    (piece,) = model.generate(accompanied(), keep="voice")
    assert piece.new_score.notes["onset"].min(initial=9999) >= 6 * 480  # two bars of 3/4, then 2/4


def test_the_key_of_a_kept_part_is_found_from_it():
    scale = [(96 * i, 90, pitch, 64) for i, pitch in enumerate((62, 64, 66, 67, 69, 71, 73, 74))]
    score = Score(96, [Track("Voice", notes=notes_from(scale))])
    (piece,), _ = write(score, SONGS, keep="voice")
    assert SONGS.decode(piece.tokens).key_signatures == [KeySignature(0, 2)]


def test_several_pieces_and_samples_at_once_are_those_alone():
    scores = [accompanied(), Score(96, accompanied().tracks[:2])]
    model = music_model(SONGS)
    options = {"keep": "voice", "num_samples": 2, "seed": 1}
    together = [piece.tokens.tolist() for piece in model.generate(scores, **options)]
    alone = [model.generate(score, **options, batch_size=1) for score in scores]
    assert together == [piece.tokens.tolist() for each in alone for piece in each]
    assert together[0] != together[1]


@pytest.mark.parametrize("num_samples", [1, 2])
def test_guidance_leads_away_from_what_is_given_a_tritone_away(num_samples):
    model = music_model(SONGS, num_layers=2)
    options = {"keep": "voice", "temperature": 0, "guidance": 3, "num_samples": num_samples}
    piece = model.generate(accompanied(), **options)[-1]
    tokens, length = piece.tokens, len(piece.prompt.tokens)
    allowed = allowed_tokens(model, piece, **options)
    free = allowed.sum(1) > 1
    heard = tokens.copy()  # by the model from which guidance leads away
    for i in [*range(length), *np.flatnonzero(~free.numpy()) + length]:
        family, _, value = SONGS.vocabulary.token(int(tokens[i])).partition("_")
        if family == "Pitch":
            heard[i] = SONGS.vocabulary.id(f"Pitch_{int(value) - 6}")
    assert (heard != tokens).any()
    logits, others = (
        model.model(torch.from_numpy(x)[None], noise=NoiseKey((0,)))[0, length - 1 : -1]
        for x in (tokens, heard)
    )
    best, plain = (
        x.masked_fill(~allowed, -torch.inf).argmax(1)[free]
        for x in (3 * logits - 2 * others, logits)
    )
    assert torch.equal(best, torch.from_numpy(tokens[length:])[free])
    assert (best != plain).any()


SONG, TUNES = accompanied(), song()
STRINGS = "violin 1", "violin 2", "viola", "cello"
QUARTET = Score(
    96, [dataclasses.replace(x, name=n) for x, n in zip(TUNES.tracks, STRINGS, strict=True)]
)


@pytest.mark.parametrize(
    ("score", "tokenizer", "options", "words"),
    [
        (SONG, REMI(), {"rewrite": "2-3"}, r"rewrite need.*tokenizer=songs"),
        (SONG, CHORALE, {"rewrite": "2-3"}, r"not learned bars in fill= and rewrite="),
        (SONG, REMI(), {"key": "Eb"}, r"key needs.*tokenizer=songs"),
        (SONG, SONGS, {"keep": "flute"}, "keep=flute: expected some of its parts: voice, piano"),
        (SONG, SONGS, {"rewrite": "3-9"}, "fill: expected some of its 4 bars"),
        (SONG, SONGS, {"rewrite": "3-2"}, "fill=3-2: expected bars from 1, such as 9-12"),
        (SONG, SONGS, {"rewrite": "2", "prompt_bars": 4}, "prompt_bars=4: expected no bars in"),
        (SONG, SONGS, {"key": "Eb"}, "key=Eb: expected no prompt.*; transpose the prompt first"),
        (SONG, SONGS, {"key": "H"}, "key=H: expected a key such as C"),
        (SONG, SONGS, {"keep": "voice", "prompt_bars": 4}, "nothing is left to write"),
        (QUARTET, PARTS, {"keep": ",".join(STRINGS)}, "keep=violin.*nothing is left to write"),
        (TUNES, CHORALE, {"keep": "flute"}, "expected one to three of Soprano, Alto, Tenor, Bass"),
        (TUNES, CHORALE, {"keep": "soprano", "prompt_bars": 5}, "nothing is left to write"),
        (CHORDS, CHORALE, {"keep": "soprano,bass"}, "1 tracks that are not voices"),
        (ALTO, CHORALE, {"keep": "soprano"}, "no note of soprano, which is to be kept"),
    ],
)
def test_what_cannot_be_kept_is_one_line(score, tokenizer, options, words):
    with pytest.raises(UserError, match=words):
        write(score, tokenizer, **options)


def test_no_part_is_kept_without_a_name():
    assert not PieceParams(keep=None).is_whole_piece
    assert not PieceParams(keep="").is_whole_piece
