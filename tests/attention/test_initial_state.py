"""A prefix state is a state: that of a prefix gives what the prefix gives."""

import pytest
import torch
from hydra.utils import instantiate

from musicgen.adapters import PrefixState

SMALL = (
    *("model.dim=16", "model.num_layers=2", "model.num_heads=2", "model.ff_dim=32"),
    "model.init_std=0.3",
)
VOCAB, PREFIX = 30, 20
PAIRS = [
    ("none", "favor", "model.attention.decay=head"),
    ("none", "elu", "model.attention.decay=none"),
    ("none", "relu", "model.attention.decay=head"),
    ("rope", "favor", "model.position.site=query_key"),
    ("rope", "favor", "model.position.site=feature"),
    ("lrpe_unitary", "elu", "model.position.site=feature"),
    ("permute", "favor", "model.position.site=feature"),
]


@pytest.fixture(params=PAIRS, ids="-".join)
def model(request, config):
    position, attention, *overrides = request.param
    cfg = config("train", f"position={position}", f"attention={attention}", *SMALL, *overrides)
    return instantiate(cfg.model, vocab_size=VOCAB).double().eval()


def ids_and_positions(batch, start, length):
    ids = torch.randint(VOCAB, (batch, length))
    return ids, torch.arange(start, start + length)[None, :, None].expand(batch, -1, 1)


@torch.no_grad()
def test_the_state_of_a_prefix_equals_the_prefix(model):
    prefix, before = ids_and_positions(1, 0, PREFIX)
    ids, after = ids_and_positions(3, PREFIX, 150)
    _, state = model.forward_with_state(prefix, positions=before)
    expected, _ = model.forward_with_state(
        ids, positions=after, state=state.select(torch.zeros(3, dtype=torch.long))
    )
    adapter = PrefixState(weight=PREFIX)
    adapter.attach(model)
    adapter.initialise(model, prefix, before)
    torch.testing.assert_close(model(ids, positions=after), expected, atol=1e-8, rtol=1e-6)


def test_the_first_weights_are_a_mean_over_windows(config):
    cfg = config("train", "position=none", "attention=elu", *SMALL, "model.num_layers=1")
    model = instantiate(cfg.model, vocab_size=VOCAB).double().eval()
    ids, positions = ids_and_positions(4, 0, 8)
    states = [model.forward_with_state(row[None])[1].layers[0].attention for row in ids]
    adapter = PrefixState(weight=2)
    adapter.attach(model)
    adapter.initialise(model, ids, positions)
    found = model.layers[0].attention.initial_state(1)
    torch.testing.assert_close(found.k, sum(s.k for s in states) / 4 / 8 * 2)
    torch.testing.assert_close(found.kv, sum(s.kv for s in states) / 4 / 8 * 2)
