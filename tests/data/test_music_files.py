"""Windows of music files, in three arguments."""

import pytest
import torch

from musicgen.composer import compose_pop
from musicgen.data.music_files import MusicFiles
from musicgen.errors import UserError
from musicgen.midi import Score, Track, read, write
from musicgen.tokenization import REMI

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


def test_a_file_that_cannot_be_read_is_named(files, tmp_path):
    (tmp_path / "broken.mid").write_bytes(b"MThd")
    with pytest.raises(UserError, match=r"broken\.mid"):
        MusicFiles([*files, tmp_path / "broken.mid"], REMI(), LENGTH)


def test_a_file_without_notes_is_refused(tmp_path):
    write(Score(480, [Track("Piano")]), tmp_path / "empty.mid")
    with pytest.raises(UserError, match=r"empty\.mid: no note that the vocabulary can represent"):
        MusicFiles([tmp_path / "empty.mid"], REMI(), LENGTH)
