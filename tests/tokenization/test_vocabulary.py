import hashlib
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from musicgen.errors import UserError
from musicgen.tokenization import PUBLISHED_TRACKS, REMI, Groove2Groove, Tokenizer, Vocabulary
from musicgen.tokenization.freeze import freeze, frozen_tokenizers
from musicgen.tokenization.vocabulary import hash_of

FROZEN = Path(__file__).parents[2] / "tokenizers"
HASHES = {
    "remi": "f6be0a753b3232e3c5059bfeb550e2d5fce859172a0d09f79ba54f540e8ec0b1",
    "groove2groove": "3f27b1e31220915783d9d91f7aca61acbbb41cd024f5aab94ded4c4b61e30098",
    "groove2groove_published": "0ff022244d7c89b14d1bd3a7f752c32fa21a0b3b5466eb3a6330051916e92cd3",
    "remi_notes": "cb6bef1128ca586f414248bc0758586bcd9b76f80384dc2aa22d5b913cb9d0ca",
    "remi_fine": "4a7ac1e9c82cbce4f1e153749b06aa4735f83799f8e289ee83cc07e245359c77",
    "remi_metres": "0e804944049e17d5244b36f3d0eaf13babfb55a3a283583d8c99026c23e300da",
    "groove2groove_band": "9b2c2745b64eb9f80d6f32678a3e5978461def0183f1ceb0ad507574c8bedd7d",
}


def test_remi_has_the_families_of_the_paper():
    tokens = REMI().vocabulary.tokens
    assert Counter(token.partition("_")[0] for token in tokens) == {
        "Bar": 1,
        "EOS": 1,
        "Beat": 16,
        "Tempo": 65,
        "Pitch": 88,
        "Velocity": 24,
        "Duration": 32,
        "Chord": 133,
    }
    ends = ["Tempo_32", "Tempo_224", "Pitch_21", "Pitch_108", "Velocity_40", "Velocity_86"]
    ends += ["Duration_0.5", "Duration_16", "Chord_A_M7", "Chord_C#_/o7", "Chord_N_N"]
    assert set(ends) <= set(tokens)


def test_groove_published_has_the_published_offsets():
    vocabulary = Groove2Groove(tracks=PUBLISHED_TRACKS).vocabulary
    assert len(vocabulary.tokens) == 794
    published = {
        "NoteOn_Bass_0": 0,
        "NoteOn_Drums_36": 128 + 36,
        "NoteOn_Accompaniment_127": 383,
        "NoteOff_Bass_0": 384,
        "NoteOff_Accompaniment_127": 767,
        "TimeShift_0_1": 768,
        "TimeShift_0_11": 778,
        "TimeShift_1_0": 779,
        "TimeShift_1_11": 790,
        "TimeShift_2_0": 791,
        "EOS": 792,
        "BOS": 793,
    }
    assert {token: vocabulary.id(token) for token in published} == published


@pytest.mark.parametrize("name", HASHES)
def test_frozen_files_are_what_the_settings_give(name):
    frozen = Vocabulary.load(FROZEN / name / "vocab.json")
    assert frozen == frozen_tokenizers()[name].vocabulary
    assert frozen.hash == HASHES[name], "a changed vocabulary makes old checkpoints useless"


def test_each_frozen_vocabulary_is_a_choice_on_the_command_line():
    folder = FROZEN.parent / "conf" / "tokenizer"
    named = frozen_tokenizers()
    assert {path.stem for path in folder.glob("*.yaml")} == set(named) == set(HASHES)
    for name, tokenizer in named.items():
        configured = instantiate(OmegaConf.load(folder / f"{name}.yaml"))
        assert configured.settings() == tokenizer.settings()


def test_freeze_writes_the_frozen_files(tmp_path):
    freeze(tmp_path)
    written = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.json"))
    assert written == sorted(path.relative_to(FROZEN) for path in FROZEN.rglob("vocab.json"))
    assert all((tmp_path / p).read_bytes() == (FROZEN / p).read_bytes() for p in written)


def test_ids_names_and_pad():
    vocabulary = Vocabulary(("a", "b"))
    assert (len(vocabulary), vocabulary.pad_id) == (3, 2)
    assert [vocabulary.token(i) for i in range(3)] == ["a", "b", "PAD"]
    assert [vocabulary.id(token) for token in ("a", "b", "PAD")] == [0, 1, 2]
    with pytest.raises(IndexError):
        vocabulary.token(3)
    with pytest.raises(IndexError):
        vocabulary.token(-1)
    canonical = b'{"tokens":["a","b"],"version":1}'
    assert vocabulary.hash == hashlib.sha256(canonical).hexdigest()
    assert vocabulary.hash != Vocabulary(("b", "a")).hash


def test_json_round_trip_and_refusals(tmp_path):
    path = tmp_path / "vocab.json"
    vocabulary = Vocabulary(("a", "Señor"))
    vocabulary.save(path)
    assert Vocabulary.load(path) == vocabulary
    assert Vocabulary.from_json(json.loads(json.dumps(vocabulary.to_json()))) == vocabulary

    path.write_text(path.read_text().replace('"a"', '"c"'))
    with pytest.raises(UserError, match=r"vocab\.json: .*changed"):
        Vocabulary.load(path)
    path.write_text("[1")
    with pytest.raises(UserError, match="not JSON"):
        Vocabulary.load(path)
    path.write_text("[1]")
    with pytest.raises(UserError, match="no vocabulary"):
        Vocabulary.load(path)
    with pytest.raises(UserError, match="cannot be read"):
        Vocabulary.load(tmp_path / "none.json")


def test_foreign_and_damaged_tokenizer_files_are_refused(tmp_path):
    path = tmp_path / "mine.json"
    REMI(velocity_bins=(64, 64, 1)).save(path)
    text = path.read_text()
    with pytest.raises(UserError, match=r"mine\.json: a remi tokenizer, not groove2groove"):
        Groove2Groove.load(path)
    with pytest.raises(UserError, match="cannot be read"):
        Tokenizer.load(tmp_path / "none.json")
    with pytest.raises(UserError, match="no tokenizer"):
        Tokenizer.load(FROZEN / "remi" / "vocab.json")

    # Any single change is noticed, wherever it is.
    rng = random.Random(0)
    for _ in range(300):
        at = rng.randrange(len(text))
        path.write_text(text[:at] + rng.choice('0a"{ ,]') + text[at + 1 :])
        try:
            same = json.loads(path.read_text()) == json.loads(text)
        except ValueError:
            same = False
        if not same:
            with pytest.raises(UserError, match=r"^.*mine\.json: .*(not JSON|no tok|changed|of a)"):
                Tokenizer.load(path)
    for damaged in (text[: len(text) // 2], "", "[" * 100_000, "MThd", "[]", "5", "null", "{}"):
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"not JSON|no tokenizer"):
            Tokenizer.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not JSON"):
        Tokenizer.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"bells": 3}},
        {"settings": {**REMI().settings(), "pitch_range": [0, 127]}},
        {"settings": []},
        {"settings": {"positions_per_beat": 7}},
    ],
)
def test_a_tokenizer_of_another_version_is_refused(change):
    content = REMI().to_json() | change
    del content["hash"]
    content["hash"] = hash_of(content)
    with pytest.raises(UserError, match=r"give|another version"):
        Tokenizer.from_json(content)


@pytest.mark.parametrize(
    "tokenizer",
    [
        REMI(),
        REMI(
            time_signatures=("3/4",), positions_per_beat=6, chords=False, velocity_bins=(1, 127, 42)
        ),
        Groove2Groove(),
        Groove2Groove(tracks=PUBLISHED_TRACKS, max_beats=8, drop_track_probability=0.5),
    ],
)
def test_settings_rebuild_the_tokenizer(tokenizer):
    settings = json.loads(json.dumps(tokenizer.settings()))
    rebuilt = type(tokenizer)(**settings)
    assert rebuilt.vocabulary.hash == tokenizer.vocabulary.hash
    assert rebuilt.settings() == tokenizer.settings()


def test_augmentation_leaves_the_vocabulary_alone():
    assert REMI(max_transposition=0).vocabulary.hash == HASHES["remi"]
    quiet = Groove2Groove(max_transposition=0, drop_track_probability=0, skip_bar_probability=0)
    assert quiet.vocabulary.hash == HASHES["groove2groove"]


@pytest.mark.parametrize(
    "build",
    [
        lambda: REMI(positions_per_beat=7),
        lambda: REMI(velocity_bins=(40, 87, 2)),
        lambda: REMI(pitch_range=(21, 128)),
        lambda: REMI(pitch_range=(21,)),
        lambda: REMI(velocity_bins=(0, 127, 1)),  # 0 would be a note off
        lambda: REMI(tempo_bins=(1, 200, 1)),  # slower than MIDI can say
        lambda: REMI(max_bars=0),
        lambda: REMI(max_transposition=-1),
        lambda: Groove2Groove(max_beats=0),
        lambda: Groove2Groove(skip_bar_probability=1.5),
        lambda: Groove2Groove(tracks=[{"name": "Bass", "program": 128}]),
        lambda: Groove2Groove(tracks=[{"name": "Bass", "takes": [32, 39]}]),
        lambda: Groove2Groove(tracks=[{"name": "Bass", "takes": [[39, 32]]}]),
        lambda: Groove2Groove(tracks=[]),
        lambda: Groove2Groove(tracks=[{"name": "Bass"}, {"name": "bass "}]),
        lambda: Groove2Groove(tracks=[{"name": "Bass", "drums": True}]),
    ],
)
def test_contradictory_settings_are_refused(build):
    with pytest.raises(UserError, match="give"):
        build()
