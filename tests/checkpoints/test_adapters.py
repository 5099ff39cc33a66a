"""Adapters: the base stays, the file is small, and generation sees what was trained."""

from __future__ import annotations

import random
from dataclasses import asdict, replace

import pytest
import torch

import musicgen
from musicgen.adapters import Copy, LoRA, PrefixState
from musicgen.checkpoints import CONTENT_KEY, apply_adapter, build, rebuild, write_adapter
from musicgen.checkpoints.folders import checksum, read_safetensors, write_safetensors
from musicgen.errors import UserError
from musicgen.models import Transformer, parameter_count
from tests.checkpoints.small_model import SOFTMAX, small_model
from tests.checkpoints.test_folders import flip_a_bit

CONFIGS = {
    "lora": {"_target_": "musicgen.adapters.LoRA", "rank": 2, "targets": ["qkv", "ff_out"]},
    "prefix_state": {"_target_": "musicgen.adapters.PrefixState"},
    "copy": {"_target_": "musicgen.adapters.Copy", "window": 16, "coordinate": "index"},
}
ADAPTERS = {
    "lora": lambda: LoRA(2, targets=["qkv", "ff_out"]),
    "prefix_state": PrefixState,
    "copy": lambda: Copy(window=16, coordinate="index"),
}
IDS = torch.arange(3, 40)[None]


def trained(kind, base):
    """A model whose adapter was moved away from its first weights."""
    model = small_model().model
    model.load_state_dict(base.model.state_dict())
    adapter = ADAPTERS[kind]()
    adapter.attach(model)
    tokens = torch.randint(300, (5, 16))
    adapter.initialise(model, tokens, torch.arange(16)[None, :, None].expand(5, 16, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn_like(parameter)
    return model, adapter


def saved(kind, base, path):
    """A run's checkpoint, and beside it the file of its adapter."""
    model, _ = trained(kind, base)
    content = replace(base.content, adapter=CONFIGS[kind], config={"init": "the/base"})
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": weights, CONTENT_KEY: content.to_plain(), "global_step": 7}, path)
    write_adapter(path, path.parent / f"{kind}.safetensors")
    return model


@pytest.mark.parametrize("kind", ADAPTERS)
def test_only_the_adapter_trains(kind):
    base = small_model()
    model, adapter = trained(kind, base)
    own = adapter.own(model.state_dict())
    assert {n for n, p in model.named_parameters() if p.requires_grad} == own.keys()
    ids = torch.cat((IDS, IDS), dim=1)  # a copy head has something to copy
    loss = torch.nn.functional.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:])
    loss.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None and parameter.grad.abs().max() > 0) == (name in own)
    before = base.model.state_dict()
    kept = {n.replace("parametrizations.weight.original", "weight"): t
            for n, t in model.state_dict().items() if n not in own}  # fmt: skip
    assert kept.keys() == before.keys()
    assert all(torch.equal(kept[name], before[name]) for name in kept)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_a_run_and_its_file_generate_as_they_were_trained(kind, tmp_path):
    base = small_model()
    model = saved(kind, base, tmp_path / "run.ckpt")
    expected = model.eval()(IDS)
    assert (expected - base.model(IDS)).abs().max() > 0.01
    whole, _, content = rebuild(tmp_path / "run.ckpt")
    torch.testing.assert_close(whole(IDS), expected)
    assert content.steps == 7
    if kind != "prefix_state":  # a new run can begin from it
        assert content.adapter is None
        build(
            content.model, Transformer, vocab_size=whole.embedding.num_embeddings
        ).load_state_dict(whole.state_dict())
    file = tmp_path / f"{kind}.safetensors"
    with_file = base.with_adapter(file)
    torch.testing.assert_close(with_file.model(IDS), expected)
    assert torch.equal(base.model(IDS), small_model_with(base).model(IDS))  # a copy was adapted
    if kind != "copy":  # which has an embedding of its own
        assert file.stat().st_size < 0.5 * (tmp_path / "run.ckpt").stat().st_size
    with_file.save_pretrained(tmp_path / "published")
    published = musicgen.load(tmp_path / "published")
    torch.testing.assert_close(published.model(IDS), expected)
    base.save_pretrained(tmp_path / "half", dtype="float16")  # nearly the same weights
    half = musicgen.load(tmp_path / "half").with_adapter(file, kind)
    torch.testing.assert_close(half.model(IDS), expected, atol=0.1, rtol=0.1)


def small_model_with(base):
    again = small_model()
    again.model.load_state_dict(base.model.state_dict())
    return again


def test_lora_changes_nothing_at_first_and_merges():
    base = small_model()
    model = small_model_with(base).model
    adapter = LoRA(rank=3, alpha=6)
    adapter.attach(model)
    assert torch.equal(model(IDS), base.model(IDS))
    dim, ff, layers = 8, 12, 2
    sizes = [(3 * dim, dim), (dim, dim), (ff, dim), (dim, ff)]
    assert parameter_count(model) == layers * sum(3 * (o + i) for o, i in sizes)
    layer = model.layers[1].qkv
    low_rank = layer.parametrizations.weight[0]
    with torch.no_grad():
        low_rank.up.normal_()
    expected = base.model.layers[1].qkv.weight + 6 / 3 * low_rank.up @ low_rank.down
    adapter.finish(model)
    torch.testing.assert_close(layer.weight, expected)
    assert model.state_dict().keys() == base.model.state_dict().keys()


def test_files_for_other_models_and_of_other_kinds_are_refused(tmp_path):
    base, file = small_model(), tmp_path / "prefix_state.safetensors"
    saved("prefix_state", base, tmp_path / "run.ckpt")

    def refused(message, model=base, kind="prefix_state", path=file):
        with pytest.raises(UserError, match=message):
            apply_adapter(model.model, model.content, path, kind)

    refused(r"prefix_state\.safetensors: it was trained for other weights", small_model())
    refused("it holds an adapter of the kind prefix_state, not lora", kind="lora")
    other = small_model_with(base)
    other.content = replace(base.content, vocabulary_hash="0")
    refused("another vocabulary", other)
    softmax = small_model(SOFTMAX)
    softmax.model.embedding.load_state_dict(base.model.embedding.state_dict())
    refused("expected a model with linear attention, not softmax; use lora", softmax)
    base.save_pretrained(tmp_path)
    refused("not an adapter; give a file", path=tmp_path / "model.safetensors")
    whole, draw = file.read_bytes(), random.Random(0)
    for _ in range(60):
        flip_a_bit(file, draw)
        refused(r"prefix_state\.safetensors: ")
        file.write_bytes(whole)

    def written(changes, **more):
        tensors, description = read_safetensors(file)
        del description["sha256"]
        tensors, description = {**tensors, **changes}, {**description, **more}
        sha256 = checksum(tensors, description)
        write_safetensors(tensors, tmp_path / "odd.safetensors", {**description, "sha256": sha256})
        return tmp_path / "odd.safetensors"

    embedding = {"embedding.weight": torch.zeros_like(base.model.embedding.weight)}
    refused("do not fit", path=written(embedding))
    own = {name: t.int() for name, t in read_safetensors(file)[0].items() if "probe" not in name}
    refused("do not fit the model", path=written(own))
    refused("its sampling is no table of settings", path=written({}, sampling=5))
    file.write_bytes(whole[:-1])
    refused(r"^\S+prefix_state\.safetensors: not a safetensors file, or cut short")
    refused("cannot be read", path=tmp_path / "missing.safetensors")


def test_a_merged_lora_is_not_merged_again(tmp_path):
    base, file = small_model(), tmp_path / "lora.safetensors"
    saved("lora", base, tmp_path / "run.ckpt")
    merged = base.with_adapter(file)
    merged.save_pretrained(tmp_path / "published", dtype="bfloat16")
    loaded = [musicgen.load(tmp_path / name) for name in ("run.ckpt", "published")]
    for model in (merged, *loaded):
        with pytest.raises(UserError, match="or is merged into these already"):
            model.with_adapter(file)
    base.save_pretrained(tmp_path / "base", dtype="bfloat16")
    musicgen.load(tmp_path / "base").with_adapter(file, "lora")


def test_lora_names_its_layers():
    expected = r"targets=\[q\]: expected a list of some of qkv, out, ff_in, ff_out"
    with pytest.raises(UserError, match=expected):
        LoRA(targets=["q"]).attach(small_model().model)


def test_a_prefix_state_is_a_state_and_needs_causality():
    model = small_model().model
    model.causal = False
    with pytest.raises(UserError, match="adapter=prefix_state: expected a causal model"):
        PrefixState().attach(model)


def test_a_prefix_state_keeps_its_features(tmp_path):
    base = small_model()
    saved("prefix_state", base, tmp_path / "run.ckpt")
    content = rebuild(tmp_path / "run.ckpt")[2]
    assert content.adapter == CONFIGS["prefix_state"]
    assert asdict(content)["config"] == {"init": "the/base"}
