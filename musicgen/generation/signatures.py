"""The tempi, the time signature and the key of a piece, which its tokens need not hold."""

from dataclasses import replace
from fractions import Fraction

from musicgen.midi import TICKS_PER_BEAT, Score, TimeSignature
from musicgen.tokenization.base import Tokenizer


def on_grid(tokenizer: Tokenizer, score: Score) -> Score:
    """Return a score as its tokens hold it, with its tempi and its time signature."""
    return with_signatures(
        tokenizer.decode(tokenizer.encode(score)), signatures_of(tokenizer, score)
    )


def signatures_of(tokenizer: Tokenizer, score: Score) -> Score:
    """Return the tempi, the first key signature and the first time signature of a score.

    The time signature is left out if the bars of the tokens have another.
    """
    tempos = score.tempos.copy()
    tempos["tick"] = tempos["tick"] * TICKS_PER_BEAT // score.ticks_per_beat
    signature = score.time_signature_at(score.start)._replace(tick=0)
    bar_length = tokenizer.bar_length(score)
    other = other_time_signature(signature, bar_length, tokenizer.steps_per_beat)
    fits = score.time_signatures and other is None
    keys = [key._replace(tick=0) for key in score.key_signatures[:1]]
    return Score(
        TICKS_PER_BEAT,
        tempos=tempos,
        time_signatures=[signature] if fits else [],
        key_signatures=keys,
    )


def with_signatures(score: Score, source: Score) -> Score:
    """Return a score with the tempi, time signatures and keys of `source` where it has none.

    A key is spelled as in `source`: Gb instead of F# if that has Gb.
    """
    spelling = {key.fifths % 12: key.fifths for key in source.key_signatures}
    keys = score.key_signatures or source.key_signatures
    return replace(
        score,
        tempos=score.tempos if len(score.tempos) else source.tempos,
        time_signatures=score.time_signatures or source.time_signatures,
        key_signatures=[
            key._replace(fifths=spelling.get(key.fifths % 12, key.fifths)) for key in keys
        ],
    )


def other_time_signature(
    signature: TimeSignature, bar_length: int, steps_per_beat: int
) -> TimeSignature | None:
    """Return the time signature of bars of `bar_length` grid steps, if it is not `signature`.

    None also if no time signature has such bars: ten twelfths of a beat, as a grid of twelfths has
    for 7/32, are in none.
    """
    bar = Fraction(bar_length, 4 * steps_per_beat)  # of a whole note
    is_power_of_two = bar.denominator.bit_count() == 1
    if not is_power_of_two or bar == Fraction(signature.numerator, signature.denominator):
        return None
    denominator = max(4, bar.denominator)
    return TimeSignature(0, int(bar * denominator), denominator)
