"""Tempo, key and programs of a continuation, in the file that it is appended to."""

from __future__ import annotations

import io
from pathlib import Path

import mido
import pytest
import torch

from musicgen.errors import UserError
from musicgen.generation.model import MusicModel
from musicgen.metrics.key import Key, find_key
from musicgen.midi import loads, pitched_notes
from tests.generation.kept_prompts import BAR, FILES, track_bytes
from tests.generation.test_continuation import small_model
from tests.generation.test_kept_prompts import CONTENT, TOKENIZERS, chunks


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, paths = tmp_path_factory.mktemp("prompts"), {}
    for number, (title, file) in enumerate(FILES.items()):
        paths[title] = folder / f"{number}.mid"
        paths[title].write_bytes(file.data())
    return paths


def model(kind: str) -> MusicModel:
    torch.manual_seed(0)
    tokenizer = TOKENIZERS[kind]
    return MusicModel(small_model(tokenizer), tokenizer, CONTENT, Path("model.ckpt"))


def continued(kind, prompt=None, prompt_bars=2, **options):
    (piece,) = model(kind).generate(
        prompt, prompt_bars=prompt_bars, bars=2, max_new_tokens=24, **options
    )
    return piece, piece.midi_file()


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_tempo_begins_behind_the_prompt_and_stays(files, kind):
    piece, written = continued(kind, files["tempo changes"], tempo=91.5)
    assert written.prompt_end == 2 * BAR
    tempi = [tuple(row) for row in loads(written.data).tempos.tolist()]
    assert [round(bpm, 1) for tick, bpm in tempi if tick < 2 * BAR] == [90, 180.5]
    assert tempi[-1] == (2 * BAR, pytest.approx(91.5, abs=1e-3))
    assert piece.score.tempos["bpm"].tolist() == [91.5]
    for events, body in zip(FILES["tempo changes"].tracks, chunks(written.data), strict=False):
        assert body.startswith(track_bytes([row for row in events if row[0] < 2 * BAR]))
    new, _ = continued(kind, tempo=50)
    assert new.score.tempos.tolist() == [(0, 50.0)]


def test_the_model_reads_the_prompt_at_its_tempo_and_may_change_it_if_told(files):
    piece, _ = continued("remi", files["tempo changes"], tempo=92, hold_tempo=False)
    tempi = TOKENIZERS["remi"].families["Tempo"]
    assert [t for t in piece.prompt.tokens if t in tempi] == [tempi.start + (92 - 32) // 3]


def test_the_key_moves_prompt_and_file_the_nearest_way(files):
    plain, _ = continued("remi", files["lyrics"])
    key = find_key(pitched_notes(plain.prompt.score))
    for semitones in (-6, 5):
        name = Key((key.tonic + semitones) % 12, key.major).name.split()[0]
        piece, written = continued("remi", files["lyrics"], key=name)
        assert find_key(pitched_notes(piece.prompt.score)) == key._replace(
            tonic=(key.tonic + semitones) % 12
        )
        moved, original = (
            pitched_notes(loads(data).clip(0, written.prompt_end))["pitch"]
            for data in (written.data, FILES["lyrics"].data())
        )
        assert (moved - original == semitones).all()
        same, _ = continued("remi", files["lyrics"], transpose=semitones)
        assert same.tokens.tolist() == piece.tokens.tolist()


def test_programs_begin_behind_the_prompt(files):
    given = {"bass": "Acoustic Bass", "Piano": 4, "Strings": 48, "Guitar": "24"}
    piece, written = continued("groove2groove", files["band"], None, program=given)
    changes = {}
    for track in mido.MidiFile(file=io.BytesIO(written.data)).tracks:
        tick = 0
        for message in track:
            tick += message.time
            if message.type == "program_change":
                changes.setdefault(message.channel, []).append((tick, message.program))
    end = written.prompt_end
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
        ("remi", {"transpose": 1.5}, "transpose=1.5: expected an integer"),
        ("remi", {"transpose": 2, "key": "D"}, "transpose=2: expected no key beside it"),
        ("remi", {"key": "D"}, "transpose and key move a prompt; give one"),
        ("remi", {"key": "H"}, "key=H: expected a tonic"),
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
