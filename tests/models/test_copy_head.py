"""The copy head: against a loop over its definition, and in decoding against one parallel pass."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.batches import IGNORED, Batch
from musicgen.errors import ParameterError
from musicgen.models import CopySettings, Transformer
from musicgen.training.tasks import LanguageModeling
from tests.models.builders import VOCAB, small

LENGTH, WINDOW, MAX_LAG = 45, 20, 3
CLASSES = [0, 0, *range(2, VOCAB)]


@pytest.fixture
def model() -> Transformer:
    settings = {"heads": 2, "width": 8, "window": WINDOW, "max_lag": MAX_LAG}
    model = small(match_classes=CLASSES, copy=settings)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    head = model.copy_head
    torch.nn.init.normal_(head.lag_bias, std=1.5)
    for parameter in (head.match_steps, head.gate_steps):
        torch.nn.init.normal_(parameter, std=0.8)
    return model


@pytest.fixture(params=[256, 7])
def block(request, monkeypatch) -> None:
    """How many queries are computed at once."""
    monkeypatch.setattr("musicgen.models.copy_head._BLOCK", request.param)


def random_input() -> tuple[Tensor, Tensor]:
    """Return tokens [2, L], some of which come again, and their positions: index, time and bar."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCAB, (2, LENGTH), generator=generator)
    tokens[:, 16:30] = tokens[:, 3:17]
    bars = (torch.rand(2, LENGTH, generator=generator) < 0.2).cumsum(1)
    index = torch.arange(LENGTH).expand(2, -1)
    return tokens, torch.stack((index, 4 * bars, bars), dim=-1)


def shared(classes: list[int], n: int, j: int) -> int:
    """Return how many tokens up to n are of the classes of those up to j."""
    return next((i for i in range(j + 1) if classes[n - i] != classes[j - i]), j + 1)


def naive(
    model: Transformer,
    tokens: Tensor,
    positions: Tensor,
    lag_bias: Tensor | None = None,
    temperature: float = 1.0,
    first: int = 0,
) -> Tensor:
    """Compute p of the next token [L, V] of one row in loops; tokens before `first` are padding."""
    factor = torch.ones(MAX_LAG + 1) if lag_bias is None else lag_bias.exp()
    head, bars = model.copy_head, positions[:, 2].tolist()
    mask = (torch.arange(len(tokens)) >= first)[None]
    x, _ = model.hidden(tokens[None], positions=positions[None], key_mask=mask)
    own = (model.head(x)[0] / temperature).softmax(-1)
    e = head.embedding(tokens) * mask[0, :, None]
    taps = head.conv.weight[:, 0].T  # the last is the token's own
    seen = [
        e[n] + sum(taps[-1 - i] * e[n - i] for i in range(len(taps)) if n >= i)
        for n in range(len(e))
    ]
    seen = torch.stack([(y - y.mean()) / (y.var(unbiased=False) + 1e-5).sqrt() for y in seen])
    q, k, gates = head.projection(torch.cat((x[0], seen), -1)).split(head.sizes, -1)
    classes = [CLASSES[token] for token in tokens.tolist()]
    expected = []
    for n in range(len(tokens)):
        keys = [j for j in range(max(first, n - WINDOW), n) if 0 <= bars[n] - bars[j] <= MAX_LAG]
        if not keys:
            expected.append(own[n])
            continue
        matches = [0 if n - j == WINDOW else shared(classes, n, j) for j in keys]
        levels = [sum(match >= 2**level for level in range(8)) for match in matches]
        logits, copied = [gates[n, 0]], []
        for h in range(head.heads):
            of_head = slice(8 * h, 8 * h + 8)
            scores = torch.stack(
                [
                    15 * torch.cosine_similarity(q[n, of_head], k[j, of_head], dim=0)
                    + head.lag_bias[h, bars[n] - bars[j]]
                    + head.match_steps[h, :level].sum()
                    for j, level in zip(keys, levels, strict=True)
                ]
            )
            weight, per_count = head.match_weight[:, h]
            match = (
                weight * scores.exp().sum().log() + per_count * torch.tensor(min(n, WINDOW)).log()
            )
            match = match + head.gate_steps[h, : max(levels) + 1].sum()
            logits.append(gates[n, 1 + h] + match)
            p = torch.zeros(VOCAB)
            for j, a in zip(keys, scores.softmax(0), strict=True):
                p[tokens[j + 1]] += a * factor[bars[n] - bars[j]]
            copied.append(p)
        gate = torch.stack(logits).softmax(0)
        mixed = gate[0] * own[n] + sum(g * p for g, p in zip(gate[1:], copied, strict=True))
        expected.append(mixed / mixed.sum())
    return torch.stack(expected)


@pytest.mark.usefixtures("block")
def test_mixture_is_the_definition(model):
    tokens, positions = random_input()
    with torch.no_grad():
        for first in (0, 9):  # padding before it is not copied
            mask = (torch.arange(LENGTH) >= first).expand(2, -1)
            found = model(tokens, positions=positions, key_mask=mask)[:, first:].exp()
            rows = zip(tokens, positions, strict=True)
            expected = torch.stack([naive(model, *row, first=first)[first:] for row in rows])
            torch.testing.assert_close(found, expected, atol=2e-6, rtol=2e-5)
            torch.testing.assert_close(found.sum(-1), torch.ones(2, LENGTH - first))


@pytest.mark.usefixtures("block")
def test_loss_of_targets_is_that_of_all_log_probabilities_and_the_model_learns_its_own(model):
    tokens, positions = random_input()
    targets = tokens.roll(-1, 1)
    targets[:, -1] = IGNORED
    loss = LanguageModeling().loss(model, Batch(tokens, targets, positions), None)
    log_p = torch.stack(
        (
            model(tokens, positions=positions),
            model.head(model.hidden(tokens, positions=positions)[0]).log_softmax(-1),
        )
    )
    chosen = targets.clamp(min=0)
    found = model(tokens, positions=positions, targets=chosen)
    torch.testing.assert_close(found, log_p.gather(3, chosen.expand(2, -1, -1)[..., None])[..., 0])
    expected, own = (F.nll_loss(each.mT, targets, ignore_index=IGNORED) for each in log_p)
    gradients = []
    for each in (expected + own, loss):
        model.zero_grad()
        each.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


def test_unknown_settings_are_named():
    with pytest.raises(ParameterError, match=r"copy=\{'heds': 2\}: expected heads, width"):
        small(copy={"heds": 2})


def test_only_the_last_token(model):
    tokens, positions = random_input()
    with torch.no_grad():
        expected = model(tokens, positions=positions)[:, -1:]
        found, _ = model.forward_with_state(tokens, positions=positions, last=True)
        torch.testing.assert_close(found, expected)
        _, state = model.forward_with_state(tokens[:, :30], positions=positions[:, :30])
        rest = tokens[:, 30:], positions[:, 30:]
        found, _ = model.forward_with_state(rest[0], positions=rest[1], last=True, state=state)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_voices_that_lead_and_matches_as_old_as_the_window(model):
    tokens, positions = random_input()
    tokens[:, WINDOW:] = tokens[:, : LENGTH - WINDOW]  # all since the oldest key comes again
    positions[:, ::3, 2] += 1  # of each third token, as of a voice that is a bar ahead
    assert (positions[:, 1:, 2] < positions[:, :-1, 2]).sum() > 20
    found = model(tokens, positions=positions)
    expected = torch.stack([naive(model, *row) for row in zip(tokens, positions, strict=True)])
    torch.testing.assert_close(found.exp(), expected, atol=2e-6, rtol=2e-5)
    for prefix in (1, WINDOW, WINDOW + 1, 2 * WINDOW):
        _, state = model.forward_with_state(tokens[:, :prefix], positions=positions[:, :prefix])
        rest = {"positions": positions[:, prefix:], "state": state}
        steps, _ = model.forward_with_state(tokens[:, prefix:], **rest)
        torch.testing.assert_close(steps, found[:, prefix:], atol=1e-5, rtol=1e-4)


def test_the_sampler_multiplies_what_is_copied_at_a_lag_and_divides_the_models_own_logits(model):
    tokens, positions = random_input()
    biases, temperatures = torch.randn(2, MAX_LAG + 1), [0.6, 1.7]
    with torch.inference_mode():
        _, state = model.forward_with_state(tokens[:, :-1], positions=positions[:, :-1])
        settings = CopySettings(biases, torch.tensor(temperatures)[:, None])
        rest = {"positions": positions[:, -1:], "state": state, "copy_settings": settings}
        found = model.forward_with_state(tokens[:, -1:], **rest)[0][:, 0]
        rows = zip(tokens, positions, biases, temperatures, strict=True)
        expected = torch.stack([naive(model, *row)[-1] for row in rows])
    torch.testing.assert_close(found.exp(), expected, atol=2e-6, rtol=2e-5)
