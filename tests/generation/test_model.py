"""What a loaded model does with a prompt before it goes on with it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from musicgen.data.composer import FAMILIES, compose_groove, compose_pop
from musicgen.errors import UserError
from musicgen.generation.model import MusicModel
from musicgen.midi import write
from musicgen.tokenization import REMI, Groove2Groove


def prompt(score, tokenizer, **data):
    content = SimpleNamespace(config={"data": {"length": 16, **data}})
    return MusicModel(None, tokenizer, content, Path("model.ckpt")).prompt(score, "p", 2)


@pytest.mark.parametrize(
    ("data", "has_chords"),
    [({"chords": "auto"}, True), ({"chords": "recognised"}, True), ({"chords": "none"}, False)],
)
def test_a_prompt_gets_chords_as_the_training_pieces_did(data, has_chords):
    score = compose_pop(0, 1)
    score.markers.clear()
    made = prompt(score, REMI(), **data)
    assert bool(made.score.markers) == has_chords
    assert ("no chord markers" in made.notice) != has_chords


def test_one_prompt_needs_no_list(tmp_path, monkeypatch):
    tokenizer = REMI()
    content = SimpleNamespace(config={"data": {"length": 16}})
    model = MusicModel(None, tokenizer, content, Path("model.ckpt"))
    asked = []
    monkeypatch.setattr(
        "musicgen.generation.model.continue_prompts",
        lambda model, tokenizer, prompts, **_: asked.append(prompts) or [],
    )
    score, path = compose_pop(0, 1), tmp_path / "song.mid"
    write(score, path)
    for prompts in (score, path, str(path), [path], (score,)):
        model.generate(prompts, prompt_bars=1)
        ((made,),) = asked
        assert len(made.tokens) > 1
        asked.clear()


def test_a_corpus_is_not_composed_where_it_is_not(tmp_path, config):
    data = OmegaConf.to_container(config("train").data)
    data |= {"root": "x", "cache_dir": str(tmp_path), "seed": 0}
    model = MusicModel(None, REMI(), SimpleNamespace(config={"data": data}), Path("model.ckpt"))
    with pytest.raises(UserError, match=r"data\.root=\S+/moved: no such folder; give"):
        model.corpus(tmp_path / "moved")
    assert model.corpus(tmp_path).root.parent == tmp_path


def test_runs_from_before_the_setting_had_the_markers():
    annotated, bare = compose_pop(0, 1), compose_pop(0, 1)
    bare.markers.clear()
    assert prompt(annotated, REMI()).score.markers
    assert not prompt(bare, REMI()).score.markers


def test_tokenizers_without_chords_get_the_score_as_it_is():
    score = compose_groove(3, sorted(FAMILIES)[0], 1, 2)
    made = prompt(score, Groove2Groove(), chords="recognised")
    assert made.score.num_notes
    assert not made.score.markers
