"""Write down how ten songs end: python -m benchmarks.ten_endings LIEDER

The first songs of OpenScore Lieder that benchmarks.tunes draws are continued by songs-small with
its default settings after 8 bars by 16 that end (`ending=close`), once each, none chosen. Beside
them stand the ends of the originals, which are those of the whole songs. Harmonies and leading
parts are read as by evaluate.py (`metrics=cadences`); the bass is the lowest note of a harmony.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import musicgen
from benchmarks import measure
from benchmarks.tunes import drawn, readers
from musicgen.metrics.cadences import ending, harmonies
from musicgen.metrics.melody import leading_part
from musicgen.midi import Score, pitched_notes
from musicgen.midi.key import Key, final_key, spelling

PROMPT_BARS, BARS = 8, 16
TOP = 3  # last notes of the leading part


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of OpenScore Lieder")
    parser.add_argument("--pieces", type=int, default=10)
    args = parser.parse_args()
    all_readers = readers("songs", args.folder)
    songs = drawn(all_readers, PROMPT_BARS, BARS, args.pieces)
    model = musicgen.load("songs-small")
    options = {"prompt_bars": PROMPT_BARS, "bars": BARS, "ending": "close", "seed": 0}
    rows = []
    for i, piece in zip(songs, model.generate([*songs.values()], **options), strict=True):
        prompt = piece.prompt
        key, own_key = final_key(prompt.score), final_key(prompt.piece)
        rows.append(
            {
                "song": measure.song_title(all_readers[i].args[0].name),
                "generated": end_of(piece.new_on_grid, key, prompt.piece),
                "original": end_of(prompt.piece, own_key, prompt.piece),
            }
        )
    measure.write_results(__file__, {"rows": rows}, argparse.Namespace(device="cpu"))


def end_of(score: Score, key: Key | None, like: Score) -> dict[str, Any]:
    """Return the end of a piece: its last two harmonies and their bass, and the last notes on top.

    Lengths are in quarters. No key is found in a piece without notes; C major spells it.

    Args:
        like: see `leading_part`.
    """
    key = key or Key(0, major=True)
    names, ticks = spelling(key.fifths), score.ticks_per_beat
    last = harmonies(score, key)[-2:]
    notes, end = pitched_notes(score), ending(score, key, like)
    stops = [harmony.tick for harmony in last[1:]] + [score.end]
    bass = [
        notes["pitch"][
            (notes["onset"] < stop)
            & (notes["onset"] + notes["duration"] > harmony.tick + ticks // 8)
        ].min()
        for harmony, stop in zip(last, stops, strict=True)
    ]
    top = leading_part(score, like)[-TOP:]
    lengths = np.round(top["duration"] / ticks, 2).tolist()
    return {
        "key": key.name,
        "harmonies": [names[x.root] + ("m" if x.is_minor else "") for x in last],
        "numerals": [*end.harmonies],
        "bass": [note_name(int(pitch), names) for pitch in bass],
        "top": [
            [note_name(p, names), x] for p, x in zip(top["pitch"].tolist(), lengths, strict=True)
        ],
        "last note": round(end.last_length, 2),
        "dominant to tonic": end.is_dominant_tonic,
    }


def note_name(pitch: int, names: tuple[str, ...]) -> str:
    """Return the name of a MIDI pitch in a key's spelling: Bb3. 60 is C4."""
    name = names[pitch % 12]
    return f"{name}{pitch // 12 - 1 + (name == 'Cb') - (name == 'B#')}"


if __name__ == "__main__":
    main()
