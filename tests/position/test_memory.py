"""The fast SPE holds no array of size length × width × R per layer."""

import gc
import weakref

import pytest
import torch

from musicgen.position import ConvSPE, SineSPE
from musicgen.random import NoiseKey


@pytest.mark.parametrize("kind", [SineSPE, ConvSPE])
def test_codes_are_freed_with_their_graph_without_garbage_collection(kind):
    spe = kind(num_layers=2, num_heads=2, width=16, model_dim=32, num_realizations=8)
    q = torch.randn(1, 20, 2, 16, requires_grad=True)
    gc.disable()
    try:
        codes, _ = spe(torch.arange(20)[None, :, None], noise=NoiseKey((1,)))
        alive = weakref.ref(codes[0].omega if kind is SineSPE else codes[0].codes)
        sum(code.encode(q, q)[0].sum() for code in codes).backward()
        del codes, _
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [SineSPE, ConvSPE])
def test_a_layer_saves_arrays_of_the_size_of_q_and_k(kind):
    length, layers = 256, 6
    spe = kind(num_layers=layers, num_heads=2, width=16, model_dim=32, num_realizations=64)
    q = torch.randn(1, length, 2, 16, requires_grad=True)
    codes, _ = spe(torch.arange(length)[None, :, None], noise=NoiseKey((1,)))
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        first = [code.encode(q, q) for code in codes[:1]]
        after_one = sum(kept.values())
        rest = [code.encode(q, q) for code in codes[1:]]
        after_all = sum(kept.values())
    assert len(first + rest) == layers
    # Later layers save gated copies of q and k, and ε: far less than length × width × R.
    each = (after_all - after_one) / (layers - 1)
    assert each < 8 * q.nbytes < length * 2 * 16 * 64 * 4 / 4
