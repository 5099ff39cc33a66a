"""The experiments have the published settings, and these reach what they set."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hydra.utils import instantiate

from benchmarks.pretrained import MAX_MEGABYTES, MODELS
from musicgen.cli.build import build_data
from musicgen.models.transformer import parameter_count


def experiments(name):
    paths = sorted((Path(__file__).parents[2] / "conf/experiment" / name).glob("*.yaml"))
    return [p for p in paths if not p.stem.endswith("_base") and not p.stem.startswith("lra_")]


@pytest.mark.parametrize("path", experiments("spe2021"), ids=lambda path: path.stem)
def test_experiments_have_the_published_sizes(config, tmp_path, path):
    """Liutkus et al. 2021, §3 and supplement C; their code."""
    groove, ape = path.stem.startswith("groove"), path.stem == "pop_piano_ape"
    command = path.read_text().splitlines()[1].removeprefix("# python train.py ").split()
    choices = [w for w in command if w.startswith(("experiment=", "data="))]
    assert command[: len(choices)] == choices
    assert choices[0] == f"experiment=spe2021/{path.stem}"
    cfg = config("train", *choices, "trainer=gpu", f"data.root={tmp_path}")
    epochs, pieces, batch = (24, 5522, 10) if groove else (160 if ape else 140, 1572, 4)
    assert cfg.trainer.max_steps == epochs * math.ceil(pieces / batch)
    tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    num_tokens = 794 if groove else 360
    assert len(tokenizer.vocabulary.tokens) == num_tokens
    data = build_data(cfg, tokenizer)
    assert (data.length, data.batch_size) == (512 if groove else 2048, batch)
    assert data.skip_beginning == (0.25 if groove else 0)
    # In the model, at a width that is quick to build.
    model = instantiate(cfg.model, vocab_size=num_tokens + 1, dim=32, ff_dim=8, num_layers=1)
    (layer,) = model.layers
    assert (model.dropout.p, layer.dropout.p) == (0.1, 0.0 if ape else 0.1)
    if "spe" in path.stem:
        assert (model.position.gate is None) == ("ungated" in path.stem)
        assert model.position.num_realizations == 64


@pytest.mark.parametrize("path", experiments("bench"), ids=lambda path: path.stem)
def test_models_of_the_jsb_chorales_are_small_and_read_whole_pieces(config, tmp_path, path):
    command = path.read_text().splitlines()[1].removeprefix("# python train.py ").split()
    assert command[0] == f"experiment=bench/{path.stem}"
    frames = [[60, 60, 55, 48]] * 640  # the longest chorale
    content = {"train": [frames, frames[:50]], "valid": [frames]}
    root = tmp_path / "Jsb16thSeparated.json"
    root.write_text(json.dumps(content))
    cfg = config("train", command[0], f"data.root={root}", f"paths.data_dir={tmp_path}")
    tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    model = instantiate(cfg.model, vocab_size=len(tokenizer.vocabulary))
    assert parameter_count(model) <= 4_000_000
    data = build_data(cfg, tokenizer)
    (batch,) = data.val_dataloader()
    assert batch.tokens.shape == (1, 1 + 4 * 640)
    assert batch.targets[0, -1] == tokenizer.vocabulary.id("EOS")
    assert cfg.model.cycles == [4, 16, 64]


def test_the_protocol_of_groove_continuations(config):
    cfg = config("generate", "protocol=spe2021_groove")
    assert (cfg.prompt, cfg.prompt_bars, cfg.bars) == ("test", 2, None)
    assert (
        cfg.length_factor * config("train", "experiment=spe2021/groove_ape").loader.length == 1024
    )


@pytest.mark.parametrize("name", MODELS)
def test_shipped_models_are_small_and_compose_their_data(config, name):
    cfg = config("train", f"experiment=pretrained/{name.replace('-', '_')}")
    tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    model = instantiate(cfg.model, vocab_size=len(tokenizer.vocabulary))
    assert 2 * parameter_count(model) / 1e6 < MAX_MEGABYTES  # two bytes a weight
    assert cfg.data._target_.endswith("ComposedCorpus")
    assert cfg.data.kind == MODELS[name]
    assert tokenizer.name == {"pop": "remi", "groove": "groove2groove"}[cfg.data.kind]
