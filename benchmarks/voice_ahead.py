"""A corpus of songs in which the voice is a bar ahead of the piano.

An experiment with the order of tokens of `songs-small` (results/songs_experiments.json):
data._target_=benchmarks.voice_ahead.VoiceAhead
"""

from dataclasses import replace

import numpy as np
from hydra.utils import instantiate
from omegaconf import OmegaConf

from musicgen.data.corpora import Songbook
from musicgen.data.corpora.base import Piece
from musicgen.midi import Score
from musicgen.package_data import CONF
from musicgen.tokenization.chord_recognition import with_chords

TOKENIZER = instantiate(OmegaConf.load(CONF / "tokenizer/songs.yaml"))


class VoiceAhead(Songbook):
    """A songbook with each bar of a voice moved to the bar before, after an empty first bar."""

    def read_piece(self, piece: Piece) -> Score:
        score = with_chords(super().read_piece(piece), "auto")
        starts = score.bar_starts()
        first_bar = score.bar_ticks(score.time_signature_at(0))
        before = np.append(0, starts + first_bar)  # where a bar of the voice goes

        def ahead(ticks: np.ndarray) -> np.ndarray:
            bar = np.searchsorted(starts, ticks, "right") - 1
            return before[bar] + np.minimum(ticks - starts[bar], before[bar + 1] - before[bar] - 1)

        later = score.moved(lambda x: x + first_bar, lambda x: x + first_bar * (x > 0))
        voices = score.moved(ahead, move_end=lambda ends: ahead(ends - 1) + 1)
        pairs = zip(later.tracks, voices.tracks, strict=True)
        return replace(later, tracks=[b if TOKENIZER.find_track(a) == 0 else a for a, b in pairs])

    def reader_id(self) -> str:
        return f"{super().reader_id()} voice ahead"
