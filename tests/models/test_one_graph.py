"""A training step with linear attention is one graph, of few kernels, that reads nothing back."""

from collections import Counter
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from musicgen.attention import FAVOR, LinearAttention
from musicgen.models import Transformer
from musicgen.position import ConvSPE, SineSPE, Sinusoidal
from musicgen.random import NoiseKey
from tests.contracts.pairs import DISTINCT, HEAD, TOKEN, VOCAB, Pair, build, pair, tokens

# Every encoding under FAVOR+. What an encoding does not change has those that differ most: the decay
# of a token and, whose code is the same without the token's part, that of a head; the other feature
# maps; and the other site.
LINEAR = [p for p in DISTINCT if p == pair(*p[:2]) and p.attention == "favor"]
LINEAR += [pair(position, "favor", TOKEN) for position in ("rope", "sine_spe", "conv_spe")]
LINEAR += [pair("none", "favor", HEAD), pair("rope", "elu"), pair("rope", "relu")]
LINEAR += [
    p for p in DISTINCT if p.position == "rope" and p.attention == "favor" and "site" in str(p)
]
# Operations that start no kernel: they return views, or allocate.
_NO_KERNEL = ("empty", "_unsafe_view", "detach")


class Kernels(TorchDispatchMode):
    """Count the operations that start a kernel on a GPU, by name, and the bytes of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view and not any(name in str(func) for name in _NO_KERNEL):
            self.counts[str(func)] += 1
            tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
            self.bytes += sum(x.nbytes for x in tensors)
        return out


def loss(model: Transformer, ids: Tensor, noise) -> Tensor:
    return F.cross_entropy(model(ids, noise=noise).flatten(0, 1), ids.flatten())


@pytest.mark.slow
@pytest.mark.parametrize("each", LINEAR, ids=str)
def test_a_training_step_is_one_graph(each: Pair):
    torch.compiler.reset()
    # One layer, as all have the same operations, and more tokens than a part of the product.
    one_layer = each._replace(settings=(*each.settings, ("num_layers", 1)))
    model, ids = build(one_layer).train(), tokens(150)
    model.recompute = each.position in ("sine_spe", "conv_spe", "rope")
    noise = model.draw(NoiseKey((1,)), ids)
    compiled = torch.compile(partial(loss, model), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(ids, noise), loss(model, ids, noise), rtol=1e-4, atol=1e-5)
    torch.compiler.reset()


def step_kernels(
    position, num_layers: int, length: int, batch: int, backend: str = "auto"
) -> Kernels:
    """Count the kernels of a step; nothing is read back before the loss is."""
    favor = partial(FAVOR, num_features=8)
    attention = partial(LinearAttention, feature_map=favor, backend=backend)
    sizes = {"dim": 16, "num_layers": num_layers, "num_heads": 2, "ff_dim": 32, "dropout": 0.1}
    model = Transformer(VOCAB, **sizes, position=position, attention=attention).train()
    ids = tokens(length, batch)
    noise = model.draw(NoiseKey((1,)), ids)
    with Kernels() as kernels:
        loss(model, ids, noise).backward()
    assert kernels.counts["aten._local_scalar_dense.default"] == 0
    return kernels


@pytest.mark.parametrize(
    ("position", "most", "most_bytes"),  # kernels and bytes per token
    [
        (Sinusoidal, 120, 31_500),
        (partial(SineSPE, num_realizations=8), 170, 39_500),
        (partial(ConvSPE, num_realizations=8), 170, 39_500),
    ],
    ids=["absolute", "sine_spe", "conv_spe"],
)
def test_a_layer_starts_few_kernels_and_moves_few_bytes_at_any_length(
    monkeypatch, position, most, most_bytes
):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    counts, per_token = {}, {}
    for length in (256, 1024):
        one, three = (step_kernels(position, n, length, 2) for n in (1, 3))
        counts[length] = (three.counts.total() - one.counts.total()) // 2
        per_token[length] = (three.bytes - one.bytes) / 2 / (2 * length)
    assert counts[256] == counts[1024] <= most
    assert per_token[1024] <= min(per_token[256], most_bytes)
