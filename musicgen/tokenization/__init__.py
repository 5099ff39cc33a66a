"""Music as tokens: encoding, decoding, and grammars."""

from musicgen.tokenization.base import EncodingSummary, Tokenizer
from musicgen.tokenization.chorale.tokenizer import FROZEN_NAME, Chorale
from musicgen.tokenization.groove2groove.instruments import FROZEN_TRACKS, PUBLISHED_TRACKS
from musicgen.tokenization.groove2groove.tokenizer import Groove2Groove
from musicgen.tokenization.remi.metre import METRES
from musicgen.tokenization.remi.tokenizer import FROZEN_SETTINGS, REMI
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
    """Return the tokenizers with a frozen vocabulary, by its folder's name in `tokenizers/`."""
    remi = {name: REMI(**settings) for name, settings in FROZEN_SETTINGS.items()}
    groove = {name: Groove2Groove(tracks=tracks) for name, tracks in FROZEN_TRACKS.items()}
    return {**remi, **groove, FROZEN_NAME: Chorale()}
