import csv
from collections import Counter

import numpy as np
import pytest

from musicgen.errors import UserError
from musicgen.evaluation.audit import audit, summarise, write_audit
from musicgen.metrics.key import find_key
from musicgen.midi import TEMPO, Score, Track, pitched_notes, write
from musicgen.tokenization import REMI
from tests.data.preparation.test_duplicates import changed
from tests.data.preparation.test_shared import medley, song, walk
from tests.data.settings import MidiFolder, encoded_corpus
from tests.metrics.test_metre import bars


def played(score, seed, bpm=100, jitter=9):
    """Return a piece as somebody played it, at a tempo."""
    rng = np.random.default_rng(seed)
    notes = score.tracks[0].notes.copy()
    notes["onset"] = np.maximum(0, notes["onset"] + rng.integers(-jitter, jitter + 1, len(notes)))
    notes["velocity"] = rng.integers(40, 90, len(notes))
    tempos = np.array([(0, bpm)], TEMPO)
    return Score(480, [Track("a", notes=notes)], tempos, score.time_signatures)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with one piece of each finding, and others."""
    root = tmp_path_factory.mktemp("audit") / "midi"
    tunes = [played(song(walk(i), i), i, 90 + i) for i in range(8)]
    plain = {f"train/tune {i}.mid": tune for i, tune in enumerate(tunes)}
    found = {
        "val/twin.mid": changed(tunes[0], shift=3),
        "val/cover.mid": played(song(walk(1) - 2, 77), 77),
        "test/medley.mid": medley(song(walk(60), 60), changed(tunes[2], shift=2)),
        "val/other.mid": played(song(walk(50), 50), 50),
        "train/again.mid": changed(tunes[3], shift=1),
        "train/empty.mid": Score(480, [Track("a")]),
        "train/waltz.mid": played(bars(3), 1),
        "train/late.mid": played(bars(4, late=1), 2),
        "train/free.mid": played(song(walk(40), 40), 3, jitter=240),
        "train/typed.mid": song(walk(42), 42),
        "train/slow.mid": played(song(walk(41), 41), 4, bpm=30),
    }
    found["train/typed.mid"].tracks[0].notes["velocity"] = 64
    for name, score in (plain | found).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write(score, root / name)
    (root / "train/broken.mid").write_bytes(b"MThd")
    return root


@pytest.fixture(scope="module")
def rows(folder):
    encoded = encoded_corpus(MidiFolder(folder), REMI(), folder.parent / "cache")
    return audit(encoded)


def test_each_finding_is_found_and_nothing_else(rows):
    found = {row["piece"]: row["findings"] for row in rows if row["findings"]}
    assert found == {
        "val/twin.mid": ["duplicate", "leak"],
        "val/cover.mid": ["leak"],
        "test/medley.mid": ["leak"],
        "train/tune 3.mid": ["duplicate"],
        "train/empty.mid": ["unusable"],
        "train/broken.mid": ["unusable"],
        "train/waltz.mid": ["metre"],
        "train/late.mid": ["bar lines"],
        "train/free.mid": ["no grid"],
        "train/typed.mid": ["machine"],
        "train/slow.mid": ["tempo"],
    }
    [details] = [row["details"] for row in rows if row["piece"] == "test/medley.mid"]
    assert details == ["it contains train/tune 2.mid, a train piece"]


def test_the_files_say_what_was_found_and_leave_it_out(folder, rows, tmp_path, capsys):
    corpus = MidiFolder(folder)
    tmp_path = tmp_path / "my audit"
    write_audit(rows, corpus, tmp_path)
    shown = capsys.readouterr().err
    assert f"'data.exclude={tmp_path}/exclude.txt'" in shown
    assert "3 pieces for validation or testing that share much with another split" in shown
    with (tmp_path / "audit.csv").open(newline="") as file:
        table = {row["piece"]: row for row in csv.DictReader(file)}
    assert len(table) == len(rows)
    assert table["val/cover.mid"]["shares_with"] == "train/tune 1.mid"
    assert table["train/slow.mid"]["bpm"] == "30.0"
    page = (tmp_path / "audit.html").read_text()
    assert "its melody is that of train/tune 1.mid, a train piece" in page
    assert "see val/cover.mid" in page

    exclude = tmp_path / "exclude.txt"
    left = MidiFolder(folder, exclude=str(exclude)).pieces()
    names = Counter(row["piece"] for row in rows) - Counter(piece.name for piece in left)
    assert set(names) == {
        *("val/twin.mid", "val/cover.mid", "test/medley.mid", "train/tune 3.mid"),
        *("train/empty.mid", "train/broken.mid"),
    }
    exclude.write_text("gone.mid\n")
    with pytest.raises(UserError, match=r"^exclude=gone.mid: expected the name of a piece"):
        MidiFolder(folder, exclude=str(exclude)).pieces()
    with pytest.raises(UserError, match=r"^exclude=/no: expected a file with names"):
        MidiFolder(folder, exclude="/no")
    assert len(MidiFolder(folder, exclude=["val/twin.mid"]).pieces()) == len(rows) - 1


def test_a_folder_without_findings(tmp_path):
    (tmp_path / "midi").mkdir()
    tunes = [played(song(walk(i), i), i) for i in range(3)]
    for i, tune in enumerate(tunes):
        write(tune, tmp_path / f"midi/{i}.mid")
    corpus = MidiFolder(tmp_path / "midi")
    rows = audit(encoded_corpus(corpus, REMI(), tmp_path / "cache"))
    found, about = summarise(rows)
    assert found == ["nothing was found"]
    keys = {find_key(pitched_notes(tune)).name for tune in tunes}
    assert about.startswith(f"{len(keys)} of 24 keys")
    assert about.endswith("100 bpm, median 100")
    write_audit(rows, corpus, tmp_path / "out")
    assert (tmp_path / "out/exclude.txt").read_bytes() == b""
