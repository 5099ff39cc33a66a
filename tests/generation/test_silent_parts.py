"""Parts of a file that get no new note are named, and parts in unison stay in unison."""

import numpy as np
import pytest

from musicgen.midi import Score, Track, loads, notes_from
from musicgen.midi.part_sharing import share_notes, silent_parts
from musicgen.tokenization import REMI
from tests.generation.builders import BAR, PromptFile, meta, music_model, notes, program, scale
from tests.tokenizers import frozen_tokenizers

VIOLA = [*meta(0, 3, b"Viola"), *program(41, 1), *scale(root=66, channel=1)]
BASS = [*meta(0, 3, b"Second Bass"), *program(43, 2), *scale(root=36, channel=2)]


def continued(path, tracks, biases):
    """A continuation by a model whose tokens of some names have other logits."""
    path.write_bytes(PromptFile(tracks).data())
    model = music_model(REMI())
    for i, name in enumerate(model.tokenizer.vocabulary.tokens):
        model.model.head.bias.data[i] += biases(name)
    (piece,) = model.generate(path, prompt_bars=2, bars=2)
    return piece


def only(pitches):
    return lambda name: -1e4 * (name.startswith("Pitch_") and int(name[6:]) not in pitches)


def test_a_track_without_a_new_note_is_named_though_its_role_has_some(tmp_path):
    path = tmp_path / "song.mid"
    piece = continued(path, [VIOLA, BASS], only(range(66, 90)))
    assert piece.new_score.num_notes
    assert piece.notice == "song.mid, continuation 1: no notes for Second Bass"
    piece = continued(path, [VIOLA, BASS], only(range(24, 46)))
    assert piece.notice == "song.mid, continuation 1: no notes for Viola"
    assert not continued(path, [VIOLA, BASS], only([36, 38, 40, 66, 68, 70])).notice


def test_parts_are_channels_of_tracks_whatever_their_programs():
    changing = [*VIOLA, (BAR, bytes([0xC1, 45])), *notes((2 * BAR, 66), channel=1)]
    file = [
        changing,
        BASS,
        scale(2, root=50, channel=3),
        [*scale(2, root=40, channel=4), *scale(2, root=45, channel=5), *program(4, 4)],
        BASS[:1] + scale(2, channel=2),
    ]
    data = PromptFile(file).data()
    assert silent_parts(data, 2 * BAR, 3 * BAR) == [
        "track 3",
        "track 4, channel 5",
        "track 4, channel 6",
        "Second Bass (track 5)",
    ]
    assert silent_parts(data, 2 * BAR, BAR) == []  # they sound so long


@pytest.mark.parametrize(("late", "is_unison"), [(0, True), (40, True), (41, False)])
def test_parts_in_unison_get_the_same_notes(late, is_unison):
    rows = [(240 * i, 200, 60 + i % 7, 64) for i in range(20)]
    first, low = notes_from(rows), notes_from([(on, 200, 36, 64) for on, *_ in rows])
    second = notes_from([(on + late, 100, pitch, 50) for on, _, pitch, _ in rows])
    new = notes_from([(9600, 200, 62, 64), (9600, 200, 38, 64), (9840, 200, 64, 64)])
    found = [each["pitch"].tolist() for each in share_notes(new, [first, low, second], 40)]
    assert found[1] == [38]
    assert sorted(found[0] + found[2]) == ([62, 62, 64, 64] if is_unison else [62, 64])
    assert (found[0] == found[2]) == is_unison
    # A part that doubles one half of another does not play all of it.
    half = share_notes(new, [first, low, first[:10], first[:0]], 40)
    assert sum(len(each) for each in half) == 3
    missed = first.copy()
    missed["pitch"][:2] = 80  # a tenth
    assert [len(each) for each in share_notes(new, [first, missed], 40)] == [3, 3]
    missed["pitch"][2] = 80
    assert sum(len(each) for each in share_notes(new, [first, missed], 40)) == 3


def test_a_file_goes_on_in_unison(tmp_path):
    flute = [*meta(0, 3, b"Flute"), *program(73, 3), *scale(root=66, channel=3)]
    piece = continued(tmp_path / "song.mid", [VIOLA, BASS, flute], only(range(24, 90)))
    viola, _, flute = loads(piece.midi_file().data).tracks
    new = [track.notes[track.notes["onset"] >= 2 * BAR] for track in (viola, flute)]
    assert len(new[0])
    assert new[0].tolist() == new[1].tolist()


def test_tracks_of_rewritten_bars_are_named():
    tracks = [
        Track(name, 0, notes=notes_from([(480 * i, 480, low + i % 3, 64) for i in range(16)]))
        for name, low in (("Piano right", 72), ("Piano left", 48))
    ]
    (piece,) = music_model(frozen_tokenizers()["songs"]).generate(Score(480, tracks), rewrite="2-3")
    (part,) = piece.prompt.targets
    begin = piece.prompt.end.tick
    new = [(begin + 480 * i, 480, 60, 64) for i in range(4)]
    for pitch, silent in ((74, "Piano left"), (49, "Piano right")):
        piece.score.tracks[part].notes = notes_from([(*row[:2], pitch, 64) for row in new])
        assert piece.notice.endswith(f"no notes for {silent}")
        found = [len(track.notes) for track in piece.midi_file().score.tracks]
        assert found == ([12, 8] if pitch == 74 else [8, 12])


@pytest.mark.parametrize("name", ["remi", "groove2groove", "songs"])
def test_notes_in_unison_are_no_duplicates(name):
    tokenizer = frozen_tokenizers()[name]
    rows = [(480 * i, 240, 60, 64) for i in range(3)]
    first = Track("Piano", 0, notes=notes_from(rows))
    second = Track("Piano 2", 0, notes=notes_from(rows[:2]))
    twice = Track("Piano 3", 0, notes=notes_from([rows[2], rows[2]]))
    for tracks, expected in [
        ([first, second], {"2 notes in unison with another track read as one"}),
        ([first, second, second], {"4 notes in unison with another track read as one"}),
        ([first, Track()], set()),
        ([twice], {"1 note doubling another dropped"}),
        (
            [first, twice],
            {
                "1 note in unison with another track read as one",
                "1 note doubling another dropped",
            },
        ),
    ]:
        summary = tokenizer.encode_with_report(Score(480, tracks))[1].summary()
        found = {
            each for each in summary.describe().split(", ") if "unison" in each or "dou" in each
        }
        assert found == expected
        one = Score(
            480, [Track("Piano", 0, notes=np.unique(np.concatenate([t.notes for t in tracks])))]
        )
        assert tokenizer.encode(Score(480, tracks)).tolist() == tokenizer.encode(one).tolist()
