"""Folders of `save_pretrained`: the same model again, and nothing of the machine."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import musicgen
from musicgen.checkpoints.storage import _LICENCES, checksum
from musicgen.data import corpora
from musicgen.errors import UserError
from musicgen.run_folders import find_checkpoint, record_start
from tests.checkpoints.small_model import MODEL, SPE, flip_a_bit, small_model

IDS = torch.arange(3, 40)[None]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 0), ("float16", 1e-2), ("bfloat16", 5e-2)]
)
def test_a_folder_gives_the_same_model(tmp_path, dtype, tolerance):
    model = small_model()
    model.save_pretrained(tmp_path / "mine", dtype=dtype)
    loaded = musicgen.load(tmp_path / "mine")
    torch.testing.assert_close(loaded.model(IDS), model.model(IDS), atol=tolerance, rtol=0)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert not loaded.model.training
    assert loaded.tokenizer.to_json() == model.tokenizer.to_json()
    assert (loaded.training_length, loaded.content.steps) == (16, 300)
    assert loaded.sampling().temperature == 0.9
    assert loaded.content.describe("mine") == "mine: 300 steps on MidiFolder, tokenizer REMI"
    again = musicgen.load(tmp_path / "mine")
    again.save_pretrained(tmp_path / "again", dtype=dtype)
    for name in ("config.json", "tokenizer.json", "model.safetensors", "README.md"):
        assert (tmp_path / "mine" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.parametrize("num_realizations", [7, None])
def test_a_model_with_other_realizations_is_stored_with_its_settings(tmp_path, num_realizations):
    changed = small_model(position=SPE, copy={}).with_realizations(num_realizations)
    changed.save_pretrained(tmp_path)
    loaded = musicgen.load(tmp_path)
    assert loaded.model.position.num_realizations == num_realizations
    assert torch.equal(loaded.model.copy_head.classes, changed.model.copy_head.classes)
    positions = torch.from_numpy(loaded.positions(IDS[0].numpy()))[None]
    expected = changed.model(IDS, positions=positions)
    assert torch.equal(loaded.model(IDS, positions=positions), expected)


def test_half_precision_refuses_what_it_cannot_hold(tmp_path):
    model = small_model()
    with torch.no_grad():
        model.model.head.bias[0] = 1e5
    with pytest.raises(UserError, match=r"head\.bias has weights beyond the range of float16"):
        model.save_pretrained(tmp_path / "x", dtype="float16")
    assert not (tmp_path / "x").exists()
    with pytest.raises(UserError, match="dtype=int8: expected one of float32"):
        model.save_pretrained(tmp_path / "x", dtype="int8")


def test_paths_of_the_machine_stay_here_and_a_card_that_is_there_stays(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    small_model().save_pretrained(tmp_path)
    assert not any(b"/home/me" in path.read_bytes() for path in tmp_path.iterdir())
    assert (tmp_path / "README.md").read_text() == "mine"


def test_damaged_files_are_refused(tmp_path):
    model = small_model()

    def refused(message, change):
        model.save_pretrained(tmp_path)
        change()
        with pytest.raises(UserError, match=message):
            musicgen.load(tmp_path)

    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    refused(r"config\.json: not JSON", lambda: config.write_text("{"))
    refused(r"config\.json: not the configuration", lambda: config.write_text("{}"))
    refused(r"tokenizer\.json: cannot", (tmp_path / "tokenizer.json").unlink)
    refused(r"model\.safetensors: cannot be read", weights.unlink)
    refused("cut short", lambda: weights.write_bytes(weights.read_bytes()[:-1]))
    refused("not a safetensors file", lambda: weights.write_bytes(b"PK\x03\x04"))

    def without_a_weight():
        tensors = load_file(weights)
        del tensors["head.bias"]
        save_file(tensors, weights)
        plain = json.loads(config.read_text())
        config.write_text(json.dumps({**plain, "sha256": checksum(tensors)}))

    refused("its weights do not fit", without_a_weight)

    draw = random.Random(0)
    for _ in range(60):
        refused(r"model\.safetensors: ", lambda: flip_a_bit(weights, draw))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (5, r"config\.json: not the configuration"),
        ([["model", 1]], r"config\.json: not the configuration"),
        ({"model": {**MODEL, "_target_": "os.system"}}, "names os.system, which is not"),
        ({"model": {**MODEL, "dim": 2**40}}, "do not fit its configuration"),
        ({"sampling": 5}, r"a damaged musicgen checkpoint \(sampling: Input should be a valid d"),
        ({"config": None}, r"a damaged musicgen checkpoint \(config: Input should be a valid dict"),
        ({"steps": "many"}, r"\(steps: Input should be a valid integer\)"),
        ({"config": {"data": "x"}}, r"\(config\.data: Input should be a valid dictionary\)"),
        ({"config": {"sampling": [5]}}, r"\(config\.sampling: Input should be a valid dictionary"),
        ({"config": {"loader": {"length": 4}}}, r"loader\.chords: Field required"),
        ({"sampling": {"top_p": 10**400}}, r"top_p=1000\d+: expected a number > 0 and <= 1"),
        ({"sampling": {"warmth": 1}}, "its sampling has warmth, which this musicgen does not know"),
        ({"sampling": {"max_notes": [2, False]}}, "max_notes=False: expected an integer"),
    ],
    ids=str,
)
def test_foreign_and_odd_configurations_are_refused(tmp_path, changes, message):
    small_model().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, **changes} if isinstance(changes, dict) else changes))
    with pytest.raises(UserError, match=message):
        musicgen.load(tmp_path).generate(bars=1)


@pytest.fixture
def registry(tmp_path, monkeypatch):
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setattr("musicgen.run_folders.PRETRAINED", folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_models_of_the_package_are_found_by_name(registry, tmp_path):
    with pytest.raises(UserError, match="no checkpoint below outputs/, where debug runs"):
        find_checkpoint("latest")
    with pytest.raises(UserError, match=r"no such file or folder; .*, or latest$"):
        find_checkpoint("groove-small")
    for name in ("groove-small", "songs-small"):
        small_model().save_pretrained(registry / name, dtype="float16")
    assert find_checkpoint("groove-small") == registry / "groove-small"
    with pytest.raises(UserError, match="or latest, songs-small, groove-small"):
        find_checkpoint("songs")
    with pytest.raises(UserError, match="no checkpoint below outputs/"):
        find_checkpoint("latest")
    assert musicgen.list_models() == ["songs-small", "groove-small"]
    assert musicgen.load().path == registry / "songs-small"
    small_model().save_pretrained("groove-small")  # a path that exists comes first
    assert find_checkpoint("groove-small") == Path("groove-small")
    last = tmp_path / "outputs/mine/checkpoints/last.ckpt"
    last.parent.mkdir(parents=True)
    last.write_text("")
    record_start(last.parents[1])
    assert find_checkpoint("latest") == Path("outputs/mine/checkpoints/last.ckpt")


def test_licences_are_those_of_corpora():
    names = {name for name in vars(corpora) if name[0].isupper()}
    assert set(_LICENCES) == names - {"MidiFolder", "Corpus", "Piece", "SPLITS"}
