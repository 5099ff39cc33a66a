"""Music as tokens: encoding, decoding, and the grammar of what may follow what."""

from musicgen.tokenization.base import EncodingReport, Tokenizer
from musicgen.tokenization.grammar import Grammar, GrammarState
from musicgen.tokenization.groove2groove import Groove2Groove
from musicgen.tokenization.instruments import BAND_TRACKS, PUBLISHED_TRACKS
from musicgen.tokenization.metre import METRES
from musicgen.tokenization.remi import REMI
from musicgen.tokenization.vocabulary import Vocabulary

__all__ = [
    "BAND_TRACKS",
    "METRES",
    "PUBLISHED_TRACKS",
    "REMI",
    "EncodingReport",
    "Grammar",
    "GrammarState",
    "Groove2Groove",
    "Tokenizer",
    "Vocabulary",
]
