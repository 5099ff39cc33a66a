"""The leading part and the ends of generated pieces, compared with their originals."""

import json

import pytest

from musicgen.midi import Score, TimeSignature, Track, write
from tests.metrics.builders import four_parts, piano

G7, C = (71, 65, 62, 43), (72, 67, 64, 48)


@pytest.fixture
def rows_of(tmp_path, measure, inputs):
    """Write an original and a piece that continues its first bar, and measure them."""

    def run(name, original, generated, prompt_end, prompt_beats):
        write(original, tmp_path / "originals/tune.mid")
        write(generated, tmp_path / "generated/tune.mid")
        row = {"file": "tune.mid", "prompt": "tune.mid"}
        row |= {"prompt end": prompt_end, "prompt beats": prompt_beats}
        manifest = {"pieces": [row], "references": str(tmp_path / "originals")}
        (tmp_path / "generated/generation.json").write_text(json.dumps(manifest))
        found = measure(name)(inputs(generated=str(tmp_path / "generated")), tmp_path)
        return {(row["pieces"], row["measure"]): row["value"] for row in found}

    return run


def song(*voice):
    """A voice in quarters, and a piano that plays all the time."""
    tracks = [
        Track("Voice", 52, notes=piano(*voice, step=480).notes),
        Track("Piano", 0, notes=piano(*((i, 1, 84) for i in range(12)), step=480).notes),
    ]
    return Score(480, tracks, time_signatures=[TimeSignature(0, 4, 4)])


def test_the_voice_is_measured_behind_the_prompt(rows_of):
    original = song(*((i, 1, 60 + i) for i in range(12)))
    generated = song(*((i, 1, 60 + i) for i in range(4)), (8, 1, 60), (9, 1, 60), (10, 1, 62))
    found = rows_of("melody", original, generated, 4 * 480, 4)
    assert found["generated", "repeated_notes"] == 1 / 2
    assert found["generated", "bars_without_lead"] == 1 / 2
    assert found["originals", "repeated_notes"] == found["originals", "bars_without_lead"] == 0


def test_ends_are_compared_with_that_of_the_whole_original(rows_of):
    beats = [4, 2, 2]
    original = four_parts(C, G7, C, G7, C, beats=[*beats, 2, 2])
    generated = four_parts(C, C, G7, beats=beats)
    found = rows_of("cadences", original, generated, 4 * 12, 4)
    assert found["generated", "dominant_tonic"] == 0
    assert found["originals", "dominant_tonic"] == 1
    assert found["originals", "last_note"] == 2


def test_phrases_are_counted_from_the_beginning_of_the_piece(rows_of):
    # Eight bars of which the last four answer the first; the prompt has two bars.
    bars = [[60, 62], [64, 65], [67, 69], [71, 74], [60, 62], [64, 65], [67, 69], [71, 72]]
    rows = [(4 * i + j, 1, pitch) for i, bar in enumerate(bars) for j, pitch in enumerate(bar)]
    rows[7] = (13, 3, 74)  # the fourth bar rests on the dominant
    chord = [(12, 4, 43), (12, 4, 59)]
    original = piano(*rows, *chord, step=480, name="Voice")
    generated = piano(*rows[:-1], (29, 1, 74), step=480, name="Voice")
    found = rows_of("cadences", original, generated, 8 * 480, 8)
    assert found["originals", "half_cadences_4"] == 1 / 2
    assert found["generated", "half_cadences_4"] == 0
    assert found["originals", "answers_4"] == 1
