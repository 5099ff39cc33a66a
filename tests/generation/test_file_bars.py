"""Bar lines, levels and counts of the prompt's own file, where the continuation begins."""

import io

import mido
import pytest

from musicgen.generation.prompt import make_prompt
from musicgen.midi import loads
from musicgen.tokenization import REMI, TIME_SIGNATURES, Groove2Groove
from tests.generation.builders import BAR, BEAT, PromptFile, metre, music_model, notes, scale

UPBEAT = [*metre(0, 1, 2), *metre(BEAT, 4, 2), *notes(*[(i * BEAT, 60) for i in range(17)])]
CUT_SHORT = [*metre(0, 4, 2), *metre(BAR + BEAT, 4, 2), *scale(5)]
WALTZ = [*metre(0, 3, 2), *scale(6)]
LONG = [*scale(2), *notes((2 * BAR, 48, 3 * BAR))]
STRAY = [*scale(2), *notes((1000 * BAR, 60))]
TOKENIZERS = [
    REMI(chords=False),
    REMI(time_signatures=TIME_SIGNATURES, chords=False),
    Groove2Groove(),
]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["4/4", "metres", "groove"])
@pytest.mark.parametrize(
    ("track", "bars", "end"),
    [
        (UPBEAT, 2, 9 * BEAT),  # the upbeat is no bar
        (CUT_SHORT, 2, 5 * BEAT),
        (CUT_SHORT, 3, 9 * BEAT),
        (WALTZ, 2, 6 * BEAT),
        (LONG, None, 5 * BAR),
        (STRAY, None, 1001 * BAR),
    ],
    ids=["upbeat", "cut short", "after it", "3/4", "long", "stray"],
)
def test_a_prompt_ends_at_a_bar_line_of_the_file_and_of_the_tokens(tokenizer, track, bars, end):
    data = PromptFile([track]).data()
    prompt = make_prompt(tokenizer, loads(data), "song", bars, data)
    assert prompt.end.file_tick == end
    assert prompt.end.step % prompt.bar_length == 0
    onsets = [tick for tick, event in track if event[0] >> 4 == 9 and event[2] and tick < end]
    assert prompt.score.num_notes == len(onsets)
    # From the last note to the end, time passes as in the file; behind it may be silence.
    rest = prompt.end.tick - int(prompt.score.notes["onset"].max())
    assert rest == (4 * BEAT if end == 5 * BEAT else end - max(onsets))
    assert prompt.end.step < 12 * 4 * tokenizer.steps_per_beat


def test_a_metre_that_the_model_cannot_write_is_named_before():
    data = PromptFile([WALTZ]).data()
    notices = [make_prompt(t, loads(data), "song", 2, data).notice for t in TOKENIZERS]
    assert notices[0].endswith(
        "3/4 read as 4/4 (tokenizer=remi_metres has it), goes on in 4/4, for 3/4 take"
        " checkpoint=groove-small"
    )
    changes = PromptFile([[*metre(2 * BAR, 3, 2), *scale(4)]]).data()  # the metre is held
    notices += [make_prompt(t, loads(changes), "song", 2, changes).notice for t in TOKENIZERS[1:]]
    assert "4/4" not in "".join(notices[1:])


@pytest.mark.parametrize("control", [7, 11])
@pytest.mark.parametrize("setting", [[(0, 90)], []])
def test_levels_at_the_cut_are_those_of_the_last_note(control, setting, tmp_path):
    levels = [*setting, (2 * BAR - 40, 0), (2 * BAR + 10, 127)]
    fade = [(tick, bytes([0xB0, control, value])) for tick, value in levels]
    # In the track of the notes, or in one of its own.
    for tracks in ([[*scale(4), *fade]], [fade, scale(4)]):
        path = tmp_path / "song.mid"
        path.write_bytes(PromptFile(tracks).data())
        options = {"prompt_bars": 2, "bars": 1, "max_new_tokens": 9}
        (piece,) = music_model(TOKENIZERS[0]).generate(path, **options)
        file = mido.MidiFile(file=io.BytesIO(piece.midi_file().data))
        values = [m.value for t in file.tracks for m in t if m.is_cc(control)]
        heard = setting[0][1] if setting else {7: 100, 11: 127}[control]
        assert values == [*(v for _, v in setting), 0, heard]


def test_losses_of_triplets_and_grace_notes_are_counted():
    triplets = PromptFile([notes(*[(160 * i, 60 + i, 150) for i in range(12)])])
    grace = PromptFile([notes((0, 60), (450, 62, 30), (480, 64))])
    read = [loads(file.data()) for file in (triplets, grace)]
    said = [TOKENIZERS[0].encode_with_report(score)[1].summary().describe() for score in read]
    assert said == [
        "all 12 notes kept, 8 onsets moved to the grid",
        "all 3 notes kept, 1 note merged into chords",
    ]
    assert not TOKENIZERS[2].encode_with_report(read[0])[1].summary().lossy
