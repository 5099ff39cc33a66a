"""The Groove2Groove reader on small files in the published layout."""

import numpy as np
import pytest

from musicgen.data.corpora import SPLITS
from musicgen.data.corpora.groove2groove import split_families
from musicgen.errors import UserError
from musicgen.midi import TEMPO, Score, TimeSignature, Track, notes_from, write
from tests.data.builders import Groove2GrooveMIDI
from tests.tokenizers import frozen_tokenizers

BEAT = 120
NAMES = ["Bass", "Drums", "Guitar", "Piano", "Strings"]


def make_song(path, *, bars=4, metre=(4, 4), more=()):
    bar = BEAT * 4 * metre[0] // metre[1]
    beats = [(i * BEAT, BEAT // 2, 40, 90) for i in range(bars * bar // BEAT)]
    score = Score(
        BEAT,
        [
            Track("BB Piano", 4, notes=notes_from([(2 * bar, BEAT, 64, 70)])),
            Track("BB Drums", 0, True, notes_from(beats)),
            Track("BB Piano", 4, notes=notes_from([(0, BEAT, 60, 70), (2 * bar, BEAT, 60, 70)])),
            Track("BB Bass", 35, notes=notes_from([(2 * bar - 10, BEAT, 36, 70), *beats[2:]])),
            *more,
        ],
        np.array([(0, 95.0)], TEMPO),
        [TimeSignature(0, *metre)],
    )
    write(score, path)
    return path


def read_song(path, **settings):
    return Groove2GrooveMIDI(path.parent, **settings).read(path)


def make_corpus(root, styles, part="train", songs=("maj001", "min002")):
    for style in styles:
        for substyle in "ab":
            for song in songs:
                make_song(root / "midi" / part / "fixed" / f"{song}.{style}_{substyle}.mid")


def corpus(root, **kwargs):
    settings = {"val_families": 1, "test_families": 2} | kwargs
    return Groove2GrooveMIDI(root, **settings)


def test_tracks_are_merged_completed_and_ordered_and_the_count_in_is_cut(tmp_path):
    kazoo = Track("Kazoo", notes=notes_from([(8 * BEAT, 1, 60, 1)]))  # for the tokenizer to report
    score = read_song(make_song(tmp_path / "a.mid", more=[kazoo]))
    assert [track.name for track in score.tracks] == [*NAMES, "Kazoo"]
    assert [len(track.notes) for track in score.tracks] == [8, 8, 0, 2, 0, 1]
    assert [track.program for track in score.tracks] == [35, 0, 27, 4, 48, 0]
    assert [track.is_drum for track in score.tracks] == [False, True, False, False, False, False]
    piano = score.tracks[3].notes
    assert [tuple(note)[:3] for note in piano.tolist()] == [(0, BEAT, 60), (0, BEAT, 64)]
    assert score.tracks[0].notes["onset"].min() == 0  # what began before the bar line is gone, too
    assert score.tempos["tick"].tolist() == [0]
    assert score.time_signatures == [TimeSignature(0, 4, 4)]


def test_bars_of_count_in_follow_the_metre(tmp_path):
    path = make_song(tmp_path / "a.mid", metre=(3, 4))
    assert read_song(path).end == read_song(path, skip_bars=0).end - 6 * BEAT
    with pytest.raises(UserError, match=r"a\.mid: 4 bars, all of them count-in"):
        read_song(path, skip_bars=4)


def test_families_are_split_and_one_song_of_a_held_out_substyle_is_taken(tmp_path):
    styles = [f"ROCK_{i}" for i in range(6)]
    make_corpus(tmp_path, styles)
    pieces = corpus(tmp_path).pieces()
    families = {s: {p.group for p in pieces if p.split == s} for s in SPLITS}
    assert [len(families[s]) for s in SPLITS] == [3, 1, 2]
    assert set.union(*families.values()) == set(styles)
    assert [sum(p.split == s for p in pieces) for s in SPLITS] == [12, 2, 4]
    assert all("maj001" in p.name for p in pieces if p.split != "train")
    assert corpus(tmp_path).pieces() == pieces != corpus(tmp_path, split_seed=1).pieces()


def test_the_draws_are_the_papers():
    # By scikit-learn 1.9.1: np.random.seed(0), train_test_split(families, test_size=3), then of
    # what is left for training again, with test_size=2.
    split = split_families([f"{i:02}" for i in range(12)], {"val": 2, "test": 3}, 0)
    assert [f for f, s in split.items() if s == "test"] == ["06", "11", "04"]
    assert [f for f, s in split.items() if s == "val"] == ["00", "03"]


def test_substyles_without_two_songs_are_left_out_and_logged(tmp_path, capsys):
    make_corpus(tmp_path, ["A", "B", "C", "D"])
    next((tmp_path / "midi/train/fixed").glob("maj001.C_b.mid")).unlink()
    pieces = corpus(tmp_path).pieces()
    assert not [p for p in pieces if "C_b" in p.name]
    assert [p for p in pieces if "C_a" in p.name]
    assert "left out 1 substyles without exactly two songs: C_b" in capsys.readouterr().err


def test_settings_and_names_of_files_that_are_refused(tmp_path):
    make_corpus(tmp_path, ["A", "B", "C", "D"])
    refusal = "val_families=3, test_families=2: expected fewer, as there are 4 families"
    with pytest.raises(UserError, match=refusal):
        corpus(tmp_path, val_families=3).pieces()
    make_song(tmp_path / "midi/train/fixed/song.mid")
    with pytest.raises(UserError, match=r"song\.mid: expected a name such as"):
        corpus(tmp_path).pieces()


def test_trios_are_bass_drums_and_a_drawn_track(tmp_path):
    drawn, published = set(), frozen_tokenizers()["groove2groove_published"]
    for number in range(20):
        path = tmp_path / f"{number}.mid"
        rows = [(0, 960, 60, 80)]
        tracks = [Track(name, 5, name == "Drums", notes_from(rows)) for name in NAMES]
        tracks[2].notes = notes_from([])  # no guitar
        tracks[4].program = 48
        write(Score(BEAT, tracks), path)
        score = read_song(path, skip_bars=0, tracks="trio")
        assert [track.name for track in score.tracks] == ["Bass", "Drums", "Accompaniment"]
        assert all(len(track.notes) == 1 for track in score.tracks)
        assert read_song(path, skip_bars=0, tracks="trio") == score
        assert published.encode_with_report(score)[1].summary().dropped == {}
        other = read_song(path, skip_bars=0, tracks="trio", split_seed=1)
        drawn.add((score.tracks[2].program, other.tracks[2].program))
    assert drawn == {(a, b) for a in (5, 48) for b in (5, 48)}
    ids = {
        Groove2GrooveMIDI(tmp_path, **settings).reader_id()
        for settings in ({}, {"tracks": "trio"}, {"tracks": "trio", "split_seed": 1})
    }
    assert len(ids) == 3, "token caches differ"
