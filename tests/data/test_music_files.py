"""Windows of music files, in three arguments."""

import pytest
import torch

import musicgen
from musicgen.composer import compose_pop
from musicgen.data.music_files import MusicFiles
from musicgen.errors import UserError
from musicgen.midi import Score, Track, read, write
from musicgen.package_data import EXAMPLES
from musicgen.tokenization import REMI
from musicgen.tokenization.chord_recognition import with_chords

LENGTH = 128


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{seed}.mid" for seed in range(2)]
    for seed, path in enumerate(paths):
        write(compose_pop(seed, 0), path)
    return paths


def test_windows_cover_every_piece_and_begin_at_bars(files):
    tokenizer = REMI(chords=False)
    windows = iter(MusicFiles(files, tokenizer, LENGTH))
    for file in files:
        score = tokenizer.normalise_rhythm(read(file))
        tokens = torch.from_numpy(tokenizer.encode(score))
        is_bar = (tokens >= tokenizer.families["Bar"].start) & (
            tokens < tokenizer.families["Bar"].stop
        )
        starts = is_bar.nonzero()[:, 0].tolist()
        end = starts[0]
        while end < len(tokens):
            window = next(windows)
            assert 1 < len(window) <= LENGTH + 1
            begin = max(
                start
                for start in starts
                if start <= end and torch.equal(window, tokens[start : start + len(window)])
            )
            end, before = begin + len(window), end
            assert end > before
    assert not list(windows)


@pytest.mark.parametrize("model", ["songs-small", "groove-small", "bach-chorales"])
@pytest.mark.parametrize("length", [147, 173, 256])
def test_each_note_of_other_tokens_is_in_a_window_and_the_end_is_once(model, length):
    tokenizer = musicgen.load(model).tokenizer
    example = EXAMPLES / ("example.mid" if model != "songs-small" else "example_6_8.mid")
    windows = [*MusicFiles([example], tokenizer, length)]
    ends = [int(window[-1]) == tokenizer.vocabulary.id("EOS") for window in windows]
    assert ends == [False] * (len(windows) - 1) + [True]
    score = tokenizer.normalise_rhythm(read(example))
    if tokenizer.chords:
        score = with_chords(score, "auto")
    number = sum(tokenizer.num_notes(window.numpy()) for window in windows)
    assert number >= tokenizer.num_notes(tokenizer.encode(score))


def test_a_file_that_cannot_be_read_is_named(files, tmp_path):
    (tmp_path / "broken.mid").write_bytes(b"MThd")
    with pytest.raises(UserError, match=r"broken\.mid"):
        MusicFiles([*files, tmp_path / "broken.mid"], REMI(), LENGTH)


def test_a_file_without_notes_is_refused(tmp_path):
    write(Score(480, [Track("Piano")]), tmp_path / "empty.mid")
    with pytest.raises(UserError, match=r"empty\.mid: no note that the vocabulary can represent"):
        MusicFiles([tmp_path / "empty.mid"], REMI(), LENGTH)
