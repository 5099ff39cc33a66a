import numpy as np
import pytest

from musicgen.composer import compose_corpus
from musicgen.composer.bands import compose_with_drummer, read_drummers
from musicgen.data.corpora import ComposedCorpus
from musicgen.errors import ParameterError, UserError
from musicgen.midi import TEMPO, Score, Track, notes_from, read, write

BAR = 4 * 480
HEADER = "midi_filename,style,beat_type,time_signature,split\n"


def performance(num_bars, velocity=lambda bar: 64):
    """Four strokes of the snare a bar, the last one 5 ticks late."""
    onsets = (0, 480, 960, 1445)
    rows = [(BAR * bar + at, 60, 40, velocity(bar)) for bar in range(num_bars) for at in onsets]
    return Score(480, [Track("", 0, True, notes_from(rows))], np.array([(0, 93)], TEMPO))


@pytest.fixture
def dataset(tmp_path):
    rows = {
        "long.mid": ("funk/groove1,beat,4-4,train", 40),
        "short.mid": ("rock,beat,4-4,train", 7),  # and its last note ends in bar 7
        "fill.mid": ("rock,fill,4-4,train", 40),
        "waltz.mid": ("jazz,beat,3-4,train", 40),
        "held_out.mid": ("rock,beat,4-4,test", 40),
        "other.mid": ("middleeastern,beat,4-4,train", 12),
    }
    for name, (_, num_bars) in rows.items():
        write(performance(num_bars), tmp_path / name)
    lines = [f"{name},{values}\n" for name, (values, _) in rows.items()]
    (tmp_path / "info.csv").write_text(HEADER + "".join(lines))
    return tmp_path


def test_performances_in_4_4_of_the_training_set_are_read(dataset):
    found = read_drummers(dataset)
    assert [(style, len(score.notes)) for style, score in found] == [
        ("funk", 160),
        ("middleeastern", 48),
    ]


@pytest.mark.parametrize(("number", "longest"), [(0, 33), (1, 10)])
def test_the_drums_of_a_song_are_a_passage_of_the_performance(dataset, number, longest):
    song = compose_with_drummer(read_drummers(dataset)[number], 0, 3, 1)
    assert song.tempos["bpm"].tolist() == pytest.approx([93])
    (drums,) = [track for track in song.tracks if track.is_drum]
    num_bars = -(-drums.notes["onset"].max() // BAR)
    assert min(24, longest) <= num_bars <= longest
    expected = [BAR * bar + at for bar in range(num_bars) for at in (0, 480, 960, 1445)]
    assert drums.notes["onset"].tolist() == expected
    assert set(drums.notes["pitch"].tolist()) <= {38, 40}  # the rim, or the snare's key in GM
    pieces = {compose_with_drummer(read_drummers(dataset)[0], 0, 3, n).num_notes for n in range(4)}
    assert len(pieces) > 1


def test_no_bar_of_the_drums_is_heard_twice(dataset):
    write(performance(12, lambda bar: 40 + bar), dataset / "other.mid")
    drummer = read_drummers(dataset)[1]
    for song in range(10):
        (drums,) = [t for t in compose_with_drummer(drummer, 0, 3, song).tracks if t.is_drum]
        first_beats = drums.notes["velocity"][drums.notes["onset"] % BAR == 0]
        assert len(set(first_beats)) == len(first_beats)


def test_a_quarter_of_the_songs_are_drums_alone(dataset):
    drummer = read_drummers(dataset)[0]
    songs = [compose_with_drummer(drummer, 0, 3, song) for song in range(200)]
    assert sum(len(song.tracks) == 1 for song in songs) == pytest.approx(50, abs=20)


def test_the_other_parts_are_louder_where_the_drums_are(dataset):
    write(performance(40, lambda bar: 30 if bar % 2 else 110), dataset / "long.mid")
    drummer, differences = read_drummers(dataset)[0], []
    for band in range(6):
        song = compose_with_drummer(drummer, 1, band, 0)
        (drums,) = [track.notes for track in song.tracks if track.is_drum]
        is_loud = drums["velocity"][drums["onset"] % BAR == 0] > 64
        for track in song.tracks:
            notes = track.notes
            if not track.is_drum and len(notes):
                loud = is_loud[np.minimum(notes["onset"] // BAR, len(is_loud) - 1)]
                velocity = notes["velocity"].astype(float)
                differences.append(velocity[loud].mean() - velocity[~loud].mean())
    assert len(differences) > 6
    assert min(differences) > 5


def test_every_second_band_of_a_corpus_has_a_drummer(dataset, tmp_path):
    composed = compose_corpus(
        tmp_path / "out", kind="bands", num_pieces=12, seed=0, drummers=dataset
    )
    names = [path.parent.name for path in composed]
    assert names == [
        name
        for name in ("band-0000", "drummer-0000", "band-0002", "drummer-0001")
        for _ in range(3)
    ]
    plain = compose_corpus(tmp_path / "plain", kind="bands", num_pieces=3, seed=0)
    assert [read(path) for path in plain] == [read(path) for path in composed[:3]]


def test_a_folder_without_the_dataset_and_other_kinds_are_refused(tmp_path):
    corpus = {"num_pieces": 6, "corpus_seed": 0, "drummers": tmp_path}
    with pytest.raises(UserError, match=r"info\.csv: no such file; drummers is the folder of the"):
        ComposedCorpus(tmp_path / "out", kind="bands", **corpus).pieces()
    with pytest.raises(ParameterError, match="expected null, or kind=bands"):
        ComposedCorpus(tmp_path / "out", kind="pop", **corpus)
