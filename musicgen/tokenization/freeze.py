"""Write the frozen vocabularies: `python -m musicgen.tokenization.freeze [FOLDER]`."""

from __future__ import annotations

import sys
from pathlib import Path

from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.groove2groove import Groove2Groove
from musicgen.tokenization.instruments import BAND_TRACKS, PUBLISHED_TRACKS
from musicgen.tokenization.metre import METRES
from musicgen.tokenization.remi import REMI


def frozen_tokenizers() -> dict[str, Tokenizer]:
    """The tokenizers whose vocabularies are kept, by the name of their folder."""
    return {
        "remi": REMI(),
        "remi_notes": REMI(chords=False, tempo_bins=None),
        "remi_fine": REMI(positions_per_beat=12, velocity_bins=(3, 127, 4)),
        "remi_metres": REMI(time_signatures=METRES),
        "groove2groove": Groove2Groove(),
        "groove2groove_published": Groove2Groove(tracks=PUBLISHED_TRACKS),
        "groove2groove_band": Groove2Groove(tracks=BAND_TRACKS),
    }


def freeze(folder: str | Path = "tokenizers") -> None:
    """Write `folder/NAME/vocab.json` for each of them."""
    for name, tokenizer in frozen_tokenizers().items():
        tokenizer.vocabulary.save(Path(folder) / name / "vocab.json")


if __name__ == "__main__":
    freeze(*sys.argv[1:2])
