"""`MusicModel.score`: nats of each token, and sums by note and bar."""

import numpy as np
import pytest
import torch

import musicgen
from musicgen.errors import UserError
from musicgen.midi import NOTE, Score, Track
from musicgen.tokenization import REMI, Chorale, Groove2Groove
from tests.generation.builders import music_model

BEAT, BAR = 480, 1920


def piece(*rows, name="Piano"):
    """A track with rows of onset and duration in quarters, and pitch."""
    notes = [(onset * BEAT, length * BEAT, pitch, 70) for onset, length, pitch in rows]
    return Score(BEAT, [Track(name, notes=np.array(notes, NOTE))])


TUNE = piece((0, 1, 60), (1, 1, 62), (4, 2, 64), (9, 1, 65))
TOKENIZERS = {
    "remi": REMI(chords=False, tempo_bins=None),
    "remi without velocities": REMI(chords=False, tempo_bins=None, velocity_bins=None),
    "groove": Groove2Groove(tracks=[{"name": "Piano"}], velocity_bins=(20, 120, 10)),
}


def expected_nats(model, tokens, bar_length):
    """The surprisals, one token after another."""
    positions = torch.from_numpy(model.positions(tokens, bar_length))[None]
    ids, nats = torch.from_numpy(tokens)[None], []
    for i in range(1, len(tokens)):
        logits = model.model(ids[:, :i], positions=positions[:, :i])[0, -1]
        nats.append(-logits.log_softmax(-1)[tokens[i]].item())
    return np.array(nats)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_notes_and_bars_have_the_nats_of_their_tokens(name):
    tokenizer = TOKENIZERS[name]
    model = music_model(tokenizer)
    found = model.score(TUNE)
    tokens = tokenizer.encode(TUNE)
    assert found.ids.tolist() == tokens[1:].tolist()
    assert found.tokens[-1] == "EOS"
    nats = expected_nats(model, tokens, 4 * tokenizer.steps_per_beat)
    np.testing.assert_allclose(found.nats, nats, rtol=1e-4, atol=1e-5)
    assert found.notes["pitch"].tolist() == [60, 62, 64, 65]
    assert found.notes["time"].tolist() == [0, 1, 4, 9]
    assert found.notes["bar"].tolist() == [0, 0, 1, 2]
    assert len(found.bars) == 3
    assert found.bars.sum() == pytest.approx(nats.sum(), rel=1e-4)
    for i, pitch in enumerate((60, 62, 64, 65)):
        own = [each for each, note in zip(found.tokens, found.note, strict=True) if note == i]
        kinds = [each.partition("_")[0] for each in own]
        if name == "groove":
            assert own[::2] == [f"NoteOn_Piano_{pitch}", f"NoteOff_Piano_{pitch}"]
            assert kinds == ["NoteOn", "Velocity", "NoteOff"]
        else:
            assert own[0] == f"Pitch_{pitch}"
            assert kinds == ["Pitch", "Velocity", "Duration"][
                : 3 if tokenizer.velocities else 1
            ] + ([] if tokenizer.velocities else ["Duration"])
        assert found.notes["nats"][i] == pytest.approx(nats[found.note == i].sum(), rel=1e-4)
    for bar in range(3):
        at = (found.time // 4).clip(max=2) == bar
        assert found.bars[bar] == pytest.approx(nats[at].sum(), rel=1e-4)


def test_each_voice_of_a_chorale_is_a_note_and_what_is_left_out_is_said():
    tokenizer = Chorale()
    found = music_model(tokenizer).score(piece((0, 1, 72), (1, 1, 74), name="Soprano"))
    assert len(found.notes) == 4 * 8  # sixteenths
    assert found.notes["pitch"][:4].tolist() == [72, -1, -1, -1]
    assert found.notes["time"][::4].tolist() == [i / 4 for i in range(8)]
    assert not found.notice
    model = music_model(TOKENIZERS["remi"])
    assert "1 notes outside" in model.score(piece((0, 1, 60), (1, 1, 127))).notice.replace(
        "1 note ", "1 notes "
    )
    with pytest.raises(UserError, match="no note that the vocabulary can represent"):
        model.score(Score(BEAT))


def test_a_model_of_the_package_scores_a_piece_and_its_parts(tmp_path):
    model = musicgen.load("bach-chorales")
    voices = {"Soprano": (72, 72, 71, 72), "Alto": (67, 69, 67, 67)}
    voices |= {"Tenor": (64, 65, 62, 64), "Bass": (48, 53, 55, 48)}

    def chords(soprano):
        """Four chords, I IV V I in C, with another soprano."""
        parts = voices | {"Soprano": soprano}
        rows = {name: [(i, 1, pitch) for i, pitch in enumerate(x)] for name, x in parts.items()}
        return Score(BEAT, [piece(*rows[name], name=name).tracks[0] for name in rows])

    tune = chords(voices["Soprano"])
    assert model.score(chords((72, 73, 71, 72))).nats.mean() > model.score(tune).nats.mean()
    tokens = model.tokenizer.encode(tune)
    ids = torch.from_numpy(tokens)[None]
    logits = model.model(ids)  # its coordinates are those of the tokens
    assert torch.equal(
        logits, model.model(ids, positions=torch.from_numpy(model.positions(tokens))[None])
    )
