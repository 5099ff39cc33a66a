"""Music as tokens: encoding, decoding, and grammars."""

from musicgen.tokenization.base import EncodingSummary, Tokenizer
from musicgen.tokenization.chorale.tokenizer import Chorale
from musicgen.tokenization.groove2groove.instruments import BAND_TRACKS, PUBLISHED_TRACKS
from musicgen.tokenization.groove2groove.tokenizer import Groove2Groove
from musicgen.tokenization.remi.metre import METRES
from musicgen.tokenization.remi.tokenizer import REMI
from musicgen.tokenization.vocabulary import Vocabulary

__all__ = [
    "METRES",
    "PUBLISHED_TRACKS",
    "REMI",
    "Chorale",
    "EncodingSummary",
    "Groove2Groove",
    "Tokenizer",
    "Vocabulary",
    "frozen_tokenizers",
]


def frozen_tokenizers() -> dict[str, Tokenizer]:
    """Return the tokenizers whose vocabularies never change, by their name in `tokenizers/`."""
    return {
        "remi": REMI(),
        "remi_notes": REMI(chords=False, tempo_bins=None),
        "remi_fine": REMI(positions_per_beat=12, velocity_bins=(3, 127, 4)),
        "remi_metres": REMI(time_signatures=METRES),
        "groove2groove": Groove2Groove(),
        "groove2groove_published": Groove2Groove(tracks=PUBLISHED_TRACKS),
        "groove2groove_band": Groove2Groove(tracks=BAND_TRACKS),
        "chorale": Chorale(),
    }
