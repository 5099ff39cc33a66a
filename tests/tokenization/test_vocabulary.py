import hashlib
import json
import re
from pathlib import Path

import pytest

from musicgen.errors import ParameterError, UserError
from musicgen.files import write_json
from musicgen.tokenization import REMI, Chorale, Groove2Groove, Tokenizer
from tests.tokenizers import frozen_tokenizers

FROZEN = Path(__file__).parents[2] / "tokenizers"
FILES = {  # SHA-256 of tokenizers/NAME/vocab.json
    "chorale": "dbd2693614e850b89967fe888842be1a522c227f32409909c82339a5e0c6e91b",
    "groove2groove": "625a4dca61f9fdbb55626adcba37caedcfa26790cb22698bdf8dec276dc401d3",
    "groove2groove_band": "05e80b4775a9686ecba99f23577f35e1cc2f139fc044adce9d6b9c49575b2e03",
    "groove2groove_played": "e05c2fe05c92c2d20798c443ae7b06a6d92914a8ed88360886fe7816b9b5c40f",
    "groove2groove_published": "b1a9b301aab3aa9a313aa4cb8496080598396b549e928f926d42fb3b891d50c7",
    "remi": "e133a3a431af4f392c61fceab6ef6aaa56c80020ae2d24a029a75c2fcf722b30",
    "remi_fine": "56e1934d78448afea5da770a11505fe4e23e74936d6e0bfea8787adc598cb2ac",
    "remi_metres": "a1c4fbac18e3ba88c06883ef71cd34bc1055ddccce4aae5714b1d83b1dbdb377",
    "remi_notes": "5385e0f860bc757eb7b0c53135698a1a415f28424f038b5fb5bb204b8e462fdf",
    "songs": "6fdee3fd9c6db9dada5efc94ce9d956f8466d56947f6e4825732e208ae585907",
    "quartet": "50db5b3d72deec1905aec9e4c3dd88ccfbf63f05ad182c8b432cbc4db0175ce1",
}


def test_the_page_has_the_number_of_tokens_of_each_vocabulary():
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|$", (FROZEN / "README.md").read_text(), re.M)
    sizes = {
        name: len(json.loads((FROZEN / name / "vocab.json").read_text())["tokens"])
        for name in FILES
    }
    assert {name: int(number) for name, number in rows} == sizes


def test_frozen_files_are_unchanged_byte_for_byte():
    assert {path.parent.name for path in FROZEN.rglob("vocab.json")} == set(FILES)
    for name, digest in FILES.items():
        data = (FROZEN / name / "vocab.json").read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest, "old checkpoints need this file"


@pytest.mark.parametrize("name", FILES)
def test_ids_are_those_of_the_frozen_files(name, tmp_path):
    content = json.loads((FROZEN / name / "vocab.json").read_text())
    vocabulary = frozen_tokenizers()[name].vocabulary
    assert list(vocabulary.names) == content["tokens"]
    assert vocabulary.tokens == (*vocabulary.names, "PAD")
    assert len(vocabulary) == len(vocabulary.tokens)
    assert [vocabulary.id(each) for each in vocabulary.tokens] == [*range(len(vocabulary))]
    assert vocabulary.hash == content["hash"]
    write_json(tmp_path / "vocab.json", vocabulary.to_json())
    assert (tmp_path / "vocab.json").read_bytes() == (FROZEN / name / "vocab.json").read_bytes()


def test_each_frozen_vocabulary_is_a_choice_or_the_default_of_its_class():
    named = frozen_tokenizers()
    assert set(named) == set(FILES)
    for kind in (REMI, Groove2Groove, Chorale):
        assert kind().settings() == named[kind.name].settings()


NO_SIGNATURES = [[], ["4/4", "4/4"], ["7/32"], ["4"], ["4/3"], ["0/4"], ["4/4 "], [4], ["100/4"]]


def test_files_that_are_no_tokenizer_are_named(tmp_path):
    path = tmp_path / "mine.json"
    REMI(velocity_bins=(64, 64, 1)).save(path)
    text = path.read_text()
    whole = json.loads(text)
    for damaged in (text[: len(text) // 2].encode(), b"[" * 100_000, b"\xff\xfe\x00"):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"mine\.json: not JSON"):
            Tokenizer.load(path)
    for other in ([], {}):
        path.write_text(json.dumps(other))
        with pytest.raises(UserError, match=r"mine\.json: not a tokenizer"):
            Tokenizer.load(path)
    path.write_text(json.dumps(whole | {"tokenizer": "octuple"}))
    with pytest.raises(
        UserError, match=r"mine\.json: tokenizer octuple is unknown \(known: .*remi"
    ):
        Tokenizer.load(path)
    with pytest.raises(UserError, match=r"none\.json: cannot be read"):
        Tokenizer.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("remi", {"tokenizer": []}, r"\(tokenizer: Input should be a valid string\)"),
        ("remi", {"settings": 5}, r"\(settings: Input should be a valid dictionary\)"),
        ("remi", {"vocabulary": {}}, r"\(vocabulary\.hash: Field required\)"),
        ("remi", {"settings": {"max_bars": 10**400}}, r"max_bars=1000\d+: expected an integer"),
        ("remi", {"settings": {"depth": 3}}, "its settings are of another version of musicgen"),
        ("songs", {"settings": {"parts": [5]}}, "its settings are of another version"),
        ("groove2groove", {"settings": {"tracks": [{"name": 5}]}}, "are of another version"),
    ],
)
def test_settings_of_other_types_are_refused(tmp_path, name, change, message):
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(frozen_tokenizers()[name].to_json() | change, default=list))
    with pytest.raises(UserError, match=rf"theirs\.json: .*{message}"):
        Tokenizer.load(path)


class Loud(REMI):
    """A tokenizer of one's own, with a setting of its own, below another."""

    name = "loud"

    def __init__(self, level: str = "fff", **settings):
        super().__init__(**settings)
        self.level = level


class Louder(Loud):
    name = "louder"


class Nameless(Louder):
    pass


def test_a_subclass_of_a_subclass_loads_from_its_file(tmp_path):
    tokenizer = Louder(level="ffff", max_bars=9, velocity_bins=(100, 127, 1))
    tokenizer.save(tmp_path / "louder.json")
    loaded = Tokenizer.load(tmp_path / "louder.json")
    assert type(loaded) is Louder
    assert (loaded.level, loaded.max_bars, loaded.velocity_bins) == ("ffff", 9, [100, 127, 1])
    assert loaded.vocabulary == tokenizer.vocabulary
    assert type(Tokenizer.from_json(REMI().to_json())) is REMI
    with pytest.raises(UserError, match="Nameless cannot be saved without a name of its own"):
        Nameless().to_json()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"bells": 3}, "another version"), ({"pitch_range": [0, 127]}, "another vocabulary")],
)
def test_a_tokenizer_of_another_version_raises(settings, message):
    with pytest.raises(UserError, match=message):
        Tokenizer.from_json(REMI().to_json() | {"settings": settings})


def test_tokenizers_from_before_the_maximum_length_of_notes_load():
    content = Groove2Groove().to_json()
    for name in ("max_note_beats", "max_drum_beats"):
        del content["settings"][name]
    assert Tokenizer.from_json(content).settings() == Groove2Groove().settings()


@pytest.mark.parametrize(
    "build",
    [
        lambda: REMI(positions_per_beat=7),
        lambda: REMI(velocity_bins=(40, 87, 2)),
        lambda: REMI(pitch_range=(21, 128)),
        lambda: REMI(velocity_bins=(0, 127, 1)),  # 0 would be a note off
        lambda: REMI(tempo_bins=(1, 200, 1)),  # slower than MIDI can store
        lambda: REMI(max_bars=0),
        lambda: REMI(pitch_range=None),
        lambda: REMI(velocity_bins=64),
        lambda: REMI(time_signatures=None),
        *(lambda names=names: REMI(time_signatures=names) for names in NO_SIGNATURES),
        lambda: Chorale(max_transposition=-1),
        lambda: Groove2Groove(max_drum_beats=1.5),
        lambda: Groove2Groove(skip_bar_probability=1.5),
        lambda: Groove2Groove(tracks=[{"name": "Bass", "program": 128}]),
        lambda: Groove2Groove(tracks=[{"name": "Bass", "takes": [[39, 32]]}]),
        lambda: Groove2Groove(tracks=[{"name": "Bass"}, {"name": "bass "}]),
    ],
)
def test_invalid_settings_raise(build):
    with pytest.raises(ParameterError, match=r"^\w+=.*: expected"):
        build()
