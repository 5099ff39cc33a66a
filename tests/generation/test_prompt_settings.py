"""Tempo and programs of a continuation, in the file that it is appended to."""

from __future__ import annotations

import io

import mido
import pytest

from musicgen.errors import UserError
from musicgen.midi import loads
from tests.generation.builders import (
    BAR,
    FILES,
    READERS,
    TOKENIZERS,
    chunks,
    music_model,
    track_bytes,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, paths = tmp_path_factory.mktemp("prompts"), {}
    for number, (title, file) in enumerate(FILES.items()):
        paths[title] = folder / f"{number}.mid"
        paths[title].write_bytes(file.data())
    return paths


def continued(kind, prompt=None, prompt_bars=2, **options):
    (piece,) = music_model(READERS[kind]).generate(
        prompt, prompt_bars=prompt_bars, bars=2, max_new_tokens=24, **options
    )
    return piece, piece.midi_file()


@pytest.mark.parametrize("kind", READERS)
def test_a_tempo_begins_behind_the_prompt_and_stays(files, kind):
    piece, (data, end, _) = continued(kind, files["tempo changes"], tempo=91.5)
    assert end == 2 * BAR
    tempi = [tuple(row) for row in loads(data).tempos.tolist()]
    assert [round(bpm, 1) for tick, bpm in tempi if tick < 2 * BAR] == [90, 180.5]
    assert tempi[-1] == (2 * BAR, pytest.approx(91.5, abs=1e-3))
    assert piece.score.tempos["bpm"].tolist() == [91.5]
    for events, body in zip(FILES["tempo changes"].tracks, chunks(data), strict=False):
        assert body.startswith(track_bytes([row for row in events if row[0] < 2 * BAR]))
    new, _ = continued(kind, tempo=50)
    assert new.score.tempos.tolist() == [(0, 50.0)]


def test_the_model_reads_the_prompt_at_its_tempo_and_may_change_it_if_told(files):
    piece, _ = continued("remi", files["tempo changes"], tempo=92, hold_tempo=False)
    tempi = TOKENIZERS["remi"].families["Tempo"]
    assert [t for t in piece.prompt.tokens if t in tempi] == [tempi.start + (92 - 32) // 3]


def test_programs_begin_behind_the_prompt(files):
    given = {"bass": "Acoustic Bass", "Piano": 4, "Strings": 48, "Guitar": "24"}
    piece, (data, end, _) = continued("groove2groove", files["band"], None, program=given)
    changes = {}
    for track in mido.MidiFile(file=io.BytesIO(data)).tracks:
        tick = 0
        for message in track:
            tick += message.time
            if message.type == "program_change":
                changes.setdefault(message.channel, []).append((tick, message.program))
    assert changes == {1: [(0, 33), (end, 32)], 2: [(0, 4), (end, 4)], 0: [(0, 24)], 3: [(0, 48)]}
    assert {t.name: t.program for t in piece.score.tracks if not t.is_drum} == {
        "Bass": 32, "Guitar": 24, "Piano": 4, "Strings": 48,
    }  # fmt: skip
    assert continued("remi", program="violin")[0].score.tracks[0].program == 40


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("remi", {"tempo": 0}, "tempo=0: expected a number >= 4"),
        ("remi", {"tempo": "fast"}, "tempo=fast: expected a number"),
        ("remi", {"program": "Kazoo"}, "program=Kazoo: expected 0 to 127"),
        ("remi", {"program": 128}, "program=128: expected an integer from 0 to 127"),
        ("remi", {"program": 1.5}, "program=1.5: expected an integer from 0 to 127"),
        ("groove2groove", {"program": 3}, "expected a program by name, of Bass, Guitar, Piano"),
        ("groove2groove", {"program": {0: 3}}, "expected a program by name, of Bass"),
        ("groove2groove", {"program": {"Drums": 3}}, "expected a program by name, of Bass"),
    ],
)
def test_values_that_cannot_be_used(kind, options, message):
    with pytest.raises(UserError, match=message):
        continued(kind, **options)
