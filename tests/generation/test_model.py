"""How a loaded model reads its prompts."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

import musicgen.cli  # noqa: F401, registers the resolver of conf/data
from musicgen.composer import FAMILIES, compose_groove, compose_pop
from musicgen.errors import UserError
from musicgen.evaluation.training_data import open_training_data
from musicgen.generation.model import MusicModel
from musicgen.generation.sampling import SamplingParams
from musicgen.midi import write
from musicgen.tokenization import REMI, Groove2Groove


def prompt(score, tokenizer, chords="auto"):
    loader = {"length": 16, "chords": chords}
    content = SimpleNamespace(config={"loader": loader}, sampling=None)
    return MusicModel(None, tokenizer, content, Path("model.ckpt")).prompt(score, "p", 2)


@pytest.mark.parametrize(
    ("chords", "has_chords"), [("auto", True), ("recognised", True), ("none", False)]
)
def test_a_prompt_gets_chords_as_the_training_pieces_did(chords, has_chords):
    score = compose_pop(0, 1)
    score.markers.clear()
    made = prompt(score, REMI(), chords)
    assert bool(made.score.markers) == has_chords
    assert ("no chord markers" in made.notice) != has_chords


def test_one_prompt_needs_no_list(tmp_path, monkeypatch):
    tokenizer = REMI()
    content = SimpleNamespace(config={"loader": {"length": 16, "chords": "auto"}}, sampling=None)
    model = MusicModel(None, tokenizer, content, Path("model.ckpt"))
    asked = []
    monkeypatch.setattr(
        "musicgen.generation.model.Sampler",
        lambda *_: SimpleNamespace(continuations=lambda prompts: asked.append(prompts) or []),
    )
    score, path = compose_pop(0, 1), tmp_path / "song.mid"
    write(score, path)
    for prompts in (score, path, str(path), [path], (score,)):
        model.generate(prompts, prompt_bars=1)
        ((made,),) = asked
        assert len(made.tokens) > 1
        asked.clear()
    model.generate()
    model.generate([])  # as of a glob without a match
    ((new,), nothing) = asked
    assert new.tokens.tolist() == tokenizer.start_tokens().tolist()
    assert nothing == []
    request = model.request(sampling=SamplingParams(top_p=0.5), temperature=0.3)
    assert request.sampling == SamplingParams(top_p=0.5, temperature=0.3)


def test_a_corpus_is_not_composed_where_a_stranger_says(tmp_path, config, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = [f"data.root={tmp_path.parent}/elsewhere", f"loader.cache_dir={tmp_path}"]
    cfg = config("train", *settings)
    plain = {name: OmegaConf.to_container(cfg[name], resolve=True) for name in ("data", "loader")}
    data = plain["data"]
    model = MusicModel(None, REMI(), SimpleNamespace(config=plain), Path("model.ckpt"))
    with pytest.raises(UserError, match="which is not here; give another folder"):
        open_training_data(model)
    assert open_training_data(model, tmp_path / "mine").corpus.root.parent == tmp_path / "mine"
    del data["root"], plain["loader"]["cache_dir"]  # a published model has no paths
    assert open_training_data(model).corpus.root.parent == Path("data/composed")
    plain["data"] = {"_target_": "musicgen.data.corpora.MidiFolder"}
    with pytest.raises(UserError, match=r"data\.root=null: expected the corpus's folder"):
        open_training_data(model)
    with pytest.raises(UserError, match=r"data\.root=\S+/mine: expected a folder"):
        open_training_data(model, tmp_path / "mine")


def test_a_corpus_of_a_package_needs_no_folder(config):
    cfg = config("train", "data=bach_chorales")
    plain = {name: OmegaConf.to_container(cfg[name], resolve=True) for name in ("data", "loader")}
    model = MusicModel(None, REMI(), SimpleNamespace(config=plain), Path("model.ckpt"))
    for root in None, "elsewhere":
        assert len(open_training_data(model, root).corpus.pieces()) == 407


def test_loading_imports_neither_hydra_nor_lightning():
    code = (
        "import sys, musicgen; musicgen.load(sys.argv[1]);"
        "print({m.split('.')[0] for m in sys.modules} & {'hydra', 'pytorch_lightning'})"
    )
    command = [sys.executable, "-c", code, "groove-small"]
    assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == "set()"


def test_tokenizers_without_chords_get_the_score_as_it_is():
    score = compose_groove(3, sorted(FAMILIES)[0], 1, 2)
    made = prompt(score, Groove2Groove(), chords="recognised")
    assert made.score.num_notes
    assert not made.score.markers
