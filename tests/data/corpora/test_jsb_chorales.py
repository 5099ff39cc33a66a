"""The reader of the JSB chorales on small made-up files in the published layout."""

import json
import lzma

import numpy as np
import pytest

from musicgen.data.corpora import JSBChorales
from musicgen.errors import UserError
from musicgen.tokenization import Chorale
from tests.data.builders import encoded_corpus

FIRST = [[72, 67, 64, 48], [72, 67, 64, -1], [74, 67, 62, 50]]


def chorales(num, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(40, 80, (rng.integers(20, 60), 4)).tolist() for _ in range(num)]


@pytest.fixture
def content():
    return {"train": [FIRST, *chorales(4)], "valid": chorales(2, 1), "test": chorales(1, 2)}


def write(path, content):
    text = json.dumps(content).encode()
    path.write_bytes(lzma.compress(text) if path.suffix == ".xz" else text)
    return path


@pytest.mark.parametrize("name", ["Jsb16thSeparated.json", "Jsb16thSeparated.json.xz", "my.json"])
def test_a_file_or_its_folder_keeps_the_published_split(tmp_path, content, name):
    path = write(tmp_path / name, content)
    roots = [path] if name == "my.json" else [path, tmp_path]
    for root in roots:
        corpus = JSBChorales(root)
        pieces = corpus.pieces()
        assert [piece.name for piece in pieces] == [
            *(f"train/00{i}" for i in range(5)),
            *("val/000", "val/001", "test/000"),
        ]
        assert [piece.split for piece in pieces] == ["train"] * 5 + ["val"] * 2 + ["test"]
        score = corpus.read_piece(pieces[0])
        assert [(track.name, track.notes["pitch"].tolist()) for track in score.tracks] == [
            ("Soprano", [72, 74]),
            ("Alto", [67]),
            ("Tenor", [64, 62]),
            ("Bass", [48, 50]),
        ]
        assert score.tracks[3].notes["onset"].tolist() == [0, 240]
        assert score.tracks[1].notes["duration"].tolist() == [360]


def test_the_encoded_corpus_has_four_tokens_a_frame(tmp_path, content):
    path = write(tmp_path / "my.json", content)
    tokenizer = Chorale()
    data = encoded_corpus(JSBChorales(path), tokenizer, tmp_path / "cache", prepare_workers=1)
    for index, frames in enumerate([*content["train"], *content["valid"], *content["test"]]):
        names = [tokenizer.vocabulary.token(int(token)) for token in data.cache[index]]
        pitches = ["Silence" if p < 0 else f"Pitch_{p}" for frame in frames for p in frame]
        assert names == ["BOS", *pitches, "EOS"]
    del content["test"]
    write(path, content)
    data = encoded_corpus(JSBChorales(path), tokenizer, tmp_path / "cache", prepare_workers=1)
    with pytest.raises(UserError, match=r"my\.json: has no test pieces.*Jsb16thSeparated\.json"):
        data.split("test")


def test_a_changed_file_is_read_again(tmp_path, content):
    path = write(tmp_path / "my.json", content)
    first = JSBChorales(path).pieces()[0]
    before = JSBChorales(path).read_piece(first)
    content["train"][0] = FIRST[:2]
    write(path, content)
    assert JSBChorales(path).read_piece(first) != before


@pytest.mark.parametrize(
    "content",
    [
        [FIRST],
        {"songs": [FIRST]},
        {"train": []},
        {"train": [FIRST, [[60, 60, 60]]]},
        {"train": [[[60, 60, 60, 60], [60]]]},
        {"train": [[[60, 60, 60, 128]]]},
        {"train": [[[60, 60, 60, 60.5]]]},
    ],
)
def test_other_json_raises_one_clear_line(tmp_path, content):
    path = write(tmp_path / "my.json", content)
    message = (
        "expected the keys train, valid and test with lists of pieces, each a list of frames with 4"
    )
    with pytest.raises(UserError, match=rf"^{path}: {message} MIDI pitches.*get Jsb16th"):
        JSBChorales(path).pieces()


@pytest.mark.parametrize("data", [b"[1", b"\xfd7zXZ\x00broken"])
def test_damaged_files_raise(tmp_path, data):
    path = tmp_path / ("a.json" if data[:1] == b"[" else "a.json.xz")
    path.write_bytes(data)
    with pytest.raises(UserError, match="not JSON, or incomplete"):
        JSBChorales(path).pieces()
