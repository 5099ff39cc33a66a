"""A decoder's steps: the model's own, alike in any batch, compiled or not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from torch._dynamo.utils import counters

from musicgen.attention import SoftmaxAttention
from musicgen.errors import UserError
from musicgen.models import Decoder, ModelState, check_compatible
from musicgen.models import decoder as decoder_module
from musicgen.position import NoiseKey

CONF = Path(__file__).parents[2] / "conf"
POSITIONS = sorted(path.stem for path in (CONF / "position").glob("*.yaml"))
ATTENTIONS = sorted(path.stem for path in (CONF / "attention").glob("*.yaml"))
VOCAB = 30
NOISE = NoiseKey((3,))
SMALL = ("model.dim=16", "model.num_layers=2", "model.num_heads=2", "model.ff_dim=32")
VARIANTS = {
    "siren": ("model.position.training_length=20",),
    "conv_spe": ("model.position.filter_length=9", "model.position.num_realizations=16"),
    "sine_spe": ("model.position.num_realizations=16",),
    # Wider: products of eight columns round differently with their rows.
    "exact": ("position=sine_spe", "model.position.num_realizations=null", "model.dim=32"),
}
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler here"
)


def build(config, position: str, attention: str, *overrides: str):
    choice = () if position == "exact" else (f"position={position}",)
    choice = (*choice, f"attention={attention}", *overrides)
    cfg = config("train", *choice, *SMALL, "model.init_std=0.3", *VARIANTS.get(position, ()))
    try:
        check_compatible(instantiate(cfg.model.position), instantiate(cfg.model.attention))
    except UserError as refused:
        pytest.skip(str(refused))
    torch.manual_seed(0)
    return instantiate(cfg.model, vocab_size=VOCAB).eval()


def prefill(model, rows: int) -> ModelState:
    ids = torch.randint(VOCAB, (1, 20), generator=torch.Generator().manual_seed(1))
    return model(ids, noise=NOISE, return_state=True)[1].select(torch.zeros(rows, dtype=int))


@torch.inference_mode()
def decode(decoder: Decoder, rows: int, count: int = 24) -> torch.Tensor:
    """Logits [count, rows, V] after tokens that differ by row; rows end one by one."""
    ids = torch.randint(VOCAB, (count, 16), generator=torch.Generator().manual_seed(2))
    wanted = torch.arange(rows)
    state, out = prefill(decoder.model, rows).select(decoder.filled(wanted)), []
    for n in range(count):
        logits, state = decoder.step(n, decoder.filled(ids[n, : len(wanted)]), state, NOISE)
        out.append(torch.zeros(rows, VOCAB))
        out[-1][: len(wanted)] = logits[: len(wanted)]
        if n % 4 == 3 and len(wanted) > 1:
            wanted = wanted[:-1]
            state = state.select(decoder.filled(wanted))
    return torch.stack(out)


@pytest.mark.parametrize(
    ("position", "attention", "overrides"),
    [(p, attention, ()) for p in (*POSITIONS, "exact") for attention in ATTENTIONS]
    + [(p, "softmax", ("span=gaussian", "model.span.training_length=20")) for p in POSITIONS],
)
@torch.inference_mode()
def test_steps_are_the_models_and_alike_in_any_batch(config, position, attention, overrides):
    model = build(config, position, attention, *overrides)
    decoder = Decoder(model, compiled=False)
    ids = torch.randint(VOCAB, (24, 16), generator=torch.Generator().manual_seed(2))
    state, expected = prefill(model, 1), []
    for n in range(24):
        logits, state = model(ids[n, :1, None], noise=NOISE, state=state, return_state=True)
        expected.append(logits[0, 0])
    alone = decode(decoder, 1)[:, 0]
    torch.testing.assert_close(alone, torch.stack(expected), rtol=1e-4, atol=1e-5)
    for rows in (2, 3, 5, 8):
        assert torch.equal(decode(decoder, rows)[:, 0], alone)


def compare(config, position: str, attention: str) -> None:
    model = build(config, position, attention)
    said: list[str] = []
    compiled = Decoder(model, compiled=True, say=said.append)
    many = decode(compiled, 5)
    torch.testing.assert_close(
        many, decode(Decoder(model, compiled=False), 5), rtol=1e-4, atol=1e-5
    )
    assert torch.equal(decode(compiled, 1)[:, 0], many[:, 0])
    assert not said


@needs_compiler
def test_compiled_once_for_all_layers_rows_and_positions(config):
    counters.clear()
    compare(config, "none", "favor")
    assert counters["stats"]["unique_graphs"] == 1


@needs_compiler
@pytest.mark.slow
def test_compiled_spe_equals_eager(config):
    compare(config, "sine_spe", "favor")


@pytest.mark.parametrize(
    ("position", "attention"),
    [(position, "favor") for position in (*POSITIONS, "exact")]
    + [("exact", "elu"), ("none", "relu"), ("none", "elu")],
)
def test_every_pair_is_one_graph_of_tensors(config, monkeypatch, position, attention):
    """What is traced, with all its guards, computes the same; inductor left out."""
    trace = torch.compile

    def without_inductor(function, *, options, **kwargs):
        return trace(function, backend="eager", **kwargs)

    monkeypatch.setattr(torch, "compile", without_inductor)
    compare(config, position, attention)


def test_a_failing_compiler_is_told_once_and_changes_nothing(config, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no compiler\nwith a long story")

    monkeypatch.setattr(decoder_module, "_compiled_copy", fail)
    model = build(config, "sine_spe", "favor")
    said: list[str] = []
    decoder = Decoder(model, compiled=True, say=said.append)
    eager = Decoder(model, compiled=False)
    torch.testing.assert_close(decode(decoder, 3), decode(eager, 3), rtol=0, atol=0)
    decode(decoder, 1)
    assert said == ["decoding runs uncompiled: RuntimeError: no compiler"]


def test_auto_compiles_once_it_pays(config, monkeypatch):
    calls = []
    monkeypatch.setattr(decoder_module, "_LAYER_STEPS_TO_COMPILE", 2 * 20)
    monkeypatch.setattr(decoder_module, "_compiled_copy", lambda model: calls.append(1) or model)
    model = build(config, "none", "favor")
    decoder = Decoder(model)
    decode(decoder, 2, count=20)
    assert not calls
    decode(decoder, 2, count=24)
    assert len(calls) == 1


def test_softmax_stays_uncompiled_and_says_so_if_asked(config):
    model = build(config, "none", "softmax")
    assert isinstance(model.layers[0].kernel, SoftmaxAttention)
    said: list[str] = []
    Decoder(model, say=said.append)
    assert not said
    decode(Decoder(model, compiled=True, say=said.append), 2)
    assert said == ["attention=softmax is not compiled for decoding: its state grows"]


def test_only_auto_true_and_false_are_settings(config):
    with pytest.raises(UserError, match="compile=maybe: give auto, true or false"):
        Decoder(build(config, "none", "favor"), compiled="maybe")
