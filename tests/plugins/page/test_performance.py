"""The page plays the notes of a file as they were, and new ones like them."""

import pytest

from musicgen.midi import Score, Track, dumps, notes_from
from tests.plugins.page.music import run_tokenizer
from tests.plugins.page.node import needs_node

pytestmark = needs_node

BAR = 1920
PLAYED = """
    const [file, whole] = [data.file, data.whole].map((bytes) => readMidi(Uint8Array.from(bytes)));
    const composer = new Composer(() => ({ tokenizer }));
    const written = tokenizer.hasParts ? printedRhythm(file) : file;
    composer.begin(makePrompt(tokenizer, withoutLongGaps(withPerformance(written, file)), 2));
    composer.tokens = tokenizer.encode(whole).slice(0, -1);
    const notes = (score) => score.tracks.flatMap(({ notes }) => notes);
    return [notes(composer.score), notes(composer.scoreOnGrid)];
"""


def bars(num_bars: int, velocities=(100, 60), late: int = 30, length: int = 140) -> list:
    """Eighths whose second ones are late, each bar softer by 5 than the one before."""
    rows = []
    for eighth in range(8 * num_bars):
        softer = 5 * (eighth // 8) if late else 0
        onset = 240 * eighth + late * (eighth % 2)
        rows.append((onset, length, 60 + eighth % 4, velocities[eighth % 2] - softer))
        if eighth % 8 == 0:
            rows.append((onset, length, 36, velocities[0] - softer))
    return rows


def file_of(rows, name: str = "Piano") -> list[int]:
    return list(dumps(Score(480, [Track(name, notes=notes_from(rows))])))


@pytest.mark.parametrize("name", ["songs", "remi metres"])
def test_new_notes_are_played_like_those_of_the_prompt(name, tmp_path):
    rows = bars(4)
    whole = [(240 * round(on / 240), 120, pitch, 80) for on, _, pitch, _ in rows]
    found = run_tokenizer(tmp_path, name, PLAYED, file=file_of(rows), whole=file_of(whole))
    played, on_grid = (sorted(map(tuple, notes)) for notes in found)
    # The third bar is played like the second, and the fourth like the first.
    louder = {2: 5, 3: 15}
    expected = sorted((on, n, key, v + louder.get(on // BAR, 0)) for on, n, key, v in rows)
    columns = slice(0, 3) if name == "remi metres" else slice(0, 4)  # REMI has its own velocities
    assert [row[columns] for row in played] == [row[columns] for row in expected]
    assert sorted(row[0] for row in on_grid) == sorted(row[0] for row in whole)
    velocities = [row[3] for row in on_grid]
    assert velocities == [row[3] for row in played]
    assert name == "songs" or {*velocities} < {78, 79, 80, 81, 82}


def test_flat_stays_flat_and_the_grid_stays_the_grid(tmp_path):
    rows = bars(5, velocities=(70, 70), late=0, length=240)
    found = run_tokenizer(tmp_path, "songs", PLAYED, file=file_of(rows), whole=file_of(rows))
    assert [sorted(map(tuple, notes)) for notes in found] == [sorted(rows)] * 2
