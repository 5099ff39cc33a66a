"""Names of measures and of baselines, in tables, reports and verdicts."""

from musicgen.metrics.style import SIMILARITIES

NATS_PER_NOTE = "nats per note"
NATS_PER_TOKEN = "nats per token, training length"
NATS_PER_TOKEN_BEYOND = "nats per token, beyond training length"
NOTES_IN_KEY = "notes in key"
NOTES_PER_BAR = "notes per bar"
REPEATED_BARS = "repeated bars"
SHORT_STRUCTURE = "structureness, short segments"
PARALLELS = ("parallel fifths", "parallel octaves")
TRAINING_MATCH = "longest match with the training set (notes)"

DESCRIPTORS = {
    "in_key_share": NOTES_IN_KEY,
    "notes_per_bar": NOTES_PER_BAR,
    "repeated_bars": REPEATED_BARS,
    "structureness_short": SHORT_STRUCTURE,
    "structureness_mid": "structureness, mid segments",
    "structureness_long": "structureness, long segments",
    "out_of_range": "out of range",
    "crossed": "crossed",
    "parallel_fifths": PARALLELS[0],
    "parallel_octaves": PARALLELS[1],
    "melody_fit": "melody fit",
}
"""Measures of continuations by the keys of `describe` and `part_writing`."""

MATCH_SOURCE = "match found in"
"""Place of the longest match with the training set, in the manifest and the report."""

PIECE_MEASURES = (*SIMILARITIES.values(), TRAINING_MATCH, MATCH_SOURCE)
"""The measures that the report shows for each piece."""

SIMILARITY_MEANINGS = {
    SIMILARITIES["onset_duration"]: "rhythm (where notes begin in a bar, and how long they last)",
    SIMILARITIES["time_pitch"]: "melody and harmony (the interval of two notes, and their lag)",
    SIMILARITIES["onset_velocity"]: "accents (where notes begin in a bar, and how loud they are)",
    SIMILARITIES["onset_drum"]: "drum patterns (which drums are struck where in a bar)",
}
"""What each similarity compares."""

TRIGRAM = "trigram model"
TRAINING_PIECES = "training pieces"
INITIAL_WEIGHTS = "initial weights"
ORIGINALS = "originals"
HELD_OUT_PIECES = "held-out pieces"
UNRELATED_PIECES = "unrelated pieces"
