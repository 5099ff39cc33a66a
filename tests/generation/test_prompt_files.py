"""Continuations behind the prompt's own file: its bytes stay, whatever the file holds."""

import io
from collections import Counter

import mido
import pytest
import torch

from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import Sampler
from musicgen.midi import loads
from tests.generation.builders import (
    FILES,
    READERS,
    PromptFile,
    chunks,
    music_model,
    timed,
    track_bytes,
)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The continuation of each file, with the file as it is written."""
    folder, out = tmp_path_factory.mktemp("prompts"), {}
    torch.manual_seed(0)
    for kind, tokenizer in READERS.items():
        model = music_model(tokenizer)
        prompts = []
        for number, (title, file) in enumerate(FILES.items()):
            if file.kind == kind:
                path = folder / str(number) / file.name
                path.parent.mkdir()
                path.write_bytes(file.data())
                prompts.append((title, model.prompt(path, title, file.bars)))
        sampler = Sampler(model.model, tokenizer, GenerationRequest.of(bars=9, max_new_tokens=60))
        for c in sampler.continuations([prompt for _, prompt in prompts]):
            out[c.prompt.name] = c, c.midi_file()
    return out


def parse(data: bytes, file: PromptFile) -> mido.MidiFile:
    if file.between:  # which mido does not read
        data = data.replace(file.between, b"")
    return mido.MidiFile(file=io.BytesIO(data))


@pytest.mark.parametrize("title", FILES)
def test_a_prompt_keeps_its_bytes_and_the_continuation_begins_at_its_end(done, title):
    file, (continuation, (data, end, notice, _)) = FILES[title], done[title]
    assert notice == ""
    old, new = file.tracks, chunks(data)
    assert end % file.beat == 0
    for events, body in zip(old, new, strict=False):
        assert body.startswith(track_bytes([row for row in events if row[0] < end]))
    parsed = parse(data, file)
    assert len(parsed.tracks) == len(new) >= len(old)
    assert parsed.type == (file.format if len(new) == len(old) else 1)
    if file.between:
        assert data.count(file.between) == len(old) - 1

    sounding, added = Counter(), Counter()
    for number, track in enumerate(parsed.tracks):
        before = sum(tick < end for tick, _ in old[number]) if number < len(old) else 0
        for tick, message in timed(track)[before:]:
            is_setting = message.type in ("track_name", "program_change") and number >= len(old)
            assert tick >= end or is_setting or message.type == "end_of_track"
            if message.type == "note_on" and message.velocity:
                added[tick - end, message.note, message.channel == 9] += 1
        for _, message in timed(track):  # every note ends
            if message.type in ("note_on", "note_off"):
                key = number, message.channel, message.note
                struck = message.type == "note_on" and message.velocity > 0
                sounding[key] = max(0, sounding[key] + (1 if struck else -1))
    assert not +sounding

    expected = Counter(
        ((2 * n["onset"] * file.beat + 480) // 960, int(n["pitch"]), track.is_drum)
        for track in continuation.new_score.tracks
        for n in track.notes
    )
    assert added == expected
    assert expected
    assert loads(data).num_notes == loads(file.data()).clip(0, end).num_notes + sum(
        expected.values()
    )


@pytest.mark.parametrize("title", [title for title, file in FILES.items() if file.bars is None])
def test_a_whole_prompt_keeps_all_its_events(done, title):
    """Only ends of notes may move, to where a key is struck again."""
    file, (_, (data, end, *_)) = FILES[title], done[title]
    tracks = parse(file.data(), file).tracks
    for old, track in zip(tracks, parse(data, file).tracks, strict=False):
        for tick, message in timed(old):
            assert tick < end or message.type != "note_on" or not message.velocity
        kept = Counter(str(row) for row in timed(track))
        assert not Counter(str(row) for row in timed(old) if not row[1].is_meta) - kept


PARTS = {  # for the added notes, their track in the file and their channel, with its program
    "type 0": {(0, 0): 0},
    "twenty tracks": {(1, 0): 16, (16, 15): 15, (18, 1): 17, (19, 2): 18, (20, 3): 19},
    "band": {(1, 1): 33, (2, 9): None, (3, 2): 4},
    "band in type 0": {(0, 1): 33, (0, 9): None, (0, 2): 4},
    "drums only": {(1, 9): None},
    "POP909": {(1, 0): 0, (2, 1): 0, (3, 2): 0},
}


@pytest.mark.parametrize("title", PARTS)
def test_notes_go_to_the_part_of_their_role(done, title):
    _, (data, end, *_) = done[title]
    found, programs = set(), {}
    for number, track in enumerate(parse(data, FILES[title]).tracks):
        for tick, message in timed(track):
            if message.type == "program_change":
                programs[message.channel] = message.program
            if tick >= end and message.type == "note_on":
                found.add((number, message.channel))
    assert found == set(PARTS[title])
    assert {part: programs.get(part[1], 0) for part in found if part[1] != 9} == {
        part: program for part, program in PARTS[title].items() if program is not None
    }
