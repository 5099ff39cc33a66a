"""Music as tokens: encoding, decoding, and grammars."""

from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chorale.tokenizer import Chorale
from musicgen.tokenization.groove2groove.tokenizer import Groove2Groove
from musicgen.tokenization.remi.tokenizer import REMI
from musicgen.tokenization.songs.tokenizer import Songs
from musicgen.tokenization.time_signatures import TIME_SIGNATURES

__all__ = ["REMI", "TIME_SIGNATURES", "Chorale", "Groove2Groove", "Songs", "Tokenizer"]
