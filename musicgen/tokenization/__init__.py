"""Music as tokens: encoding, decoding, and grammars."""

from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chorale import Chorale
from musicgen.tokenization.groove2groove import Groove2Groove
from musicgen.tokenization.remi import REMI
from musicgen.tokenization.songs import Songs
from musicgen.tokenization.whole_bars import TIME_SIGNATURES

__all__ = ["REMI", "TIME_SIGNATURES", "Chorale", "Groove2Groove", "Songs", "Tokenizer"]
