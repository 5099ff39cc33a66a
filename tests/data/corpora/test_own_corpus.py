"""A corpus of one's own, as CONTRIBUTING.md shows it, is encoded like the others."""

from pathlib import Path

import pytest

from musicgen.data.corpora import Corpus, Piece
from musicgen.midi import Score, Track, notes_from
from musicgen.tokenization import REMI
from tests.data.builders import encoded_corpus


class TextMelodies(Corpus):
    """Melodies in text files: a pitch a line, each a quarter note."""

    def pieces(self) -> list[Piece]:
        return self.without_excluded(
            [Piece(x.name, x, x.stem) for x in sorted(self.root.glob("*.txt"))]
        )

    def read(self, path: Path) -> Score:
        pitches = map(int, path.read_text().split())
        notes = notes_from([(480 * i, 480, pitch, 64) for i, pitch in enumerate(pitches)])
        return Score(480, [Track("Melody", notes=notes)])


@pytest.mark.filterwarnings("ignore")
def test_a_corpus_of_ones_own_is_encoded(tmp_path):
    melodies = {f"{i}.txt": [60 + i, 64, 67, 60 - i, 62, 65, 69, 71 + i] for i in range(6)}
    for name, pitches in melodies.items():
        (tmp_path / name).write_text("\n".join(map(str, pitches)))
    corpus = TextMelodies(tmp_path, exclude=["5.txt"])
    encoded = encoded_corpus(corpus, REMI(), tmp_path / "cache", prepare_workers=1)
    assert sorted(encoded.cache.names) == sorted({*melodies} - {"5.txt"})
    for index, name in enumerate(encoded.cache.names):
        (track,) = REMI().decode(encoded.cache[index]).tracks
        assert track.notes["pitch"].tolist() == melodies[name]
