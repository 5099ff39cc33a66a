"""Facts of a musician's interest agree with hand-made music and another library's key finder."""

import numpy as np
import pytest

from musicgen.midi.score import TEMPO, Score, TimeSignature, Track, notes_from
from musicgen.report.facts import compare_sections

# Two bars of four quarters: C major alone, then two octaves up, twice as dense, with a drum.
PITCHED = [(480 * i, 480, pitch, 70) for i, pitch in enumerate((60, 64, 67, 60))]
HIGHER = [(1_920 + 240 * i, 240, 84 + i, 100) for i in range(8)]


def score() -> Score:
    return Score(
        tracks=[
            Track("Lead", notes=notes_from(PITCHED + HIGHER)),
            Track(
                "Drums", is_drum=True, notes=notes_from([(1_920, 1, 36, 100), (3_000, 1, 38, 9)])
            ),
        ],
        tempos=np.array([(0, 120.0), (1_920, 60.0), (2_880, 90.0)], TEMPO),
        time_signatures=[TimeSignature(0, 4, 4), TimeSignature(1_920, 2, 4)],
    )


def test_sections_are_compared():
    facts = compare_sections(score(), 1_920)
    assert facts.pop("key (estimated)") == "C major"
    assert facts == {
        "tempo (bpm)": "120 → 60–90",
        "metre": "4/4 → 2/4",
        "bars": "1 + 2",
        # Four quarters at 120; two at 60 and two at 90: 2 s and 2 + 4/3 s.
        "length": "0:02 + 0:03",
        "notes a bar": "4.0 → 5.0",
        "range": "C4–G4 → C6–G6",
        "dynamics": "mf → ff",
    }


def test_a_piece_without_prompt_is_one_section():
    facts = compare_sections(score(), 0)
    assert facts["bars"] == "3"
    assert facts["tempo (bpm)"] == "60–120"
    assert facts["metre"] == "4/4, 2/4"


@pytest.mark.parametrize(
    ("notes", "is_drum", "expected"),
    [
        ([(1_920, 1, 36, 100), (3_000, 1, 38, 9)], True, ("–", "–", "1.0")),
        ([(0, 480, 60, 90), (480, 480, 67, 90)], False, ("–", "C4–G4", "2.0")),
    ],
)
def test_drums_and_few_pitch_classes_have_no_key(notes, is_drum, expected):
    facts = compare_sections(Score(tracks=[Track(is_drum=is_drum, notes=notes_from(notes))]), 0)
    assert tuple(facts[name] for name in ("key (estimated)", "range", "notes a bar")) == expected


@pytest.mark.parametrize("prompt_end", [0, 1_920])
def test_no_notes(prompt_end):
    facts = compare_sections(Score(), prompt_end)
    assert facts["bars"] == "0"
    assert facts["notes a bar"] == facts["dynamics"] == "–"
