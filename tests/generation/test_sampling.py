import numpy as np
import pytest
import torch

import musicgen
from musicgen.cli.generate import build_request
from musicgen.errors import UserError
from musicgen.generation.decoder import check_finite
from musicgen.generation.logits_processors import draw
from musicgen.generation.sampling import SamplingParams
from musicgen.random import NoiseKey
from musicgen.tokenization import REMI
from tests.generation.builders import allowed_tokens, music_model

THREE, FOUR = (0.5, 0.3, 0.2), (1 / 2, 1 / 4, 1 / 8, 1 / 8)
NO_TOKENS = torch.empty(1, 0, dtype=torch.long)
MASKED, FALLING = (0, 0.3, 0.2, 0.1), (0.4, 0.3, 0.2, 0.1)


def processed(logits, params, allowed=None):
    """Masked logits after the processors of the parameters. [B, V]"""
    logits = logits.double()
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    for process in params.processors():
        logits = process(NO_TOKENS, logits)
    return logits


@pytest.mark.parametrize(
    ("p", "settings", "expected"),
    [
        (THREE, {"top_p": 0.9}, THREE),  # the token that crosses p is the last one, and stays
        (THREE, {"top_p": 0.8}, [0.625, 0.375, 0]),
        (THREE, {"top_p": 0.5}, [1, 0, 0]),
        (THREE, {"top_p": 1.0}, THREE),
        # The others have .5: .3 is more than .5 of it, and gets all of it; or .4 times as much.
        (THREE, {"variation": 1.0}, THREE),
        (THREE, {"top_p": 0.5, "variation": 1.0}, [0.5, 0.5, 0]),
        (THREE, {"top_p": 0.5, "variation": 0.4}, [0.8, 0.2, 0]),
        (THREE, {"variation": 0.4}, [0.8, 0.12, 0.08]),
        (THREE, {"variation": 0.0}, [1, 0, 0]),
        (THREE, {"variation": False}, THREE),
        # min_p and top_k leave .3 of the others, which gets their probability; or none of them.
        (THREE, {"variation": 1.0, "min_p": 0.5}, [0.5, 0.5, 0]),
        (THREE, {"variation": 0.4, "min_p": 0.5}, [0.8, 0.2, 0]),
        (THREE, {"variation": 0.4, "min_p": 0.39}, [0.8, 0.12, 0.08]),
        (THREE, {"variation": 0.4, "top_k": 2}, [0.8, 0.2, 0]),
        (THREE, {"variation": 1.0, "min_p": 0.7}, [1, 0, 0]),
        (THREE, {"variation": 1.0, "top_k": 1}, [1, 0, 0]),
        (THREE, {"min_p": 0.39}, THREE),
        (THREE, {"min_p": 0.41}, [0.625, 0.375, 0]),
        (THREE, {"min_p": 1.0}, [1, 0, 0]),
        # In bits: surprise 1, 2, 3, 3 and entropy 1.75. The nearest is the second token.
        (FOUR, {"typical_p": 0.25}, [0, 1, 0, 0]),
        (FOUR, {"typical_p": 0.26}, [2 / 3, 1 / 3, 0, 0]),
        (FOUR, {"typical_p": 0.8}, [4 / 7, 2 / 7, 1 / 7, 0]),
        (FOUR, {"typical_p": 1.0}, FOUR),
        # Masked: 3 : 2 : 1; at temperature ½ squared, 9 : 4 : 1; the two likeliest, 9 : 4.
        (MASKED, {"temperature": 0.5, "top_k": 2}, [0, 9 / 13, 4 / 13, 0]),
        # 9/13 ≈ .69 alone passes .69 only after top-k; before it, 9/14 ≈ .64 would not.
        (MASKED, {"temperature": 0.5, "top_k": 2, "top_p": 0.68}, [0, 1, 0, 0]),
        # Top-k leaves 4 : 3 : 2, of which top-p .7 keeps 4/7 and 3/7; 3/4 of 4/7 is just 3/7.
        (FALLING, {"top_k": 3, "top_p": 0.7, "min_p": 0.74}, [4 / 7, 3 / 7, 0, 0]),
    ],
)
@pytest.mark.parametrize("added", [0, 7])
def test_filters_and_their_order_by_hand(p, settings, expected, added):
    logits = torch.tensor([p], dtype=torch.float64).log() + added
    found = processed(logits, SamplingParams(**settings)).softmax(-1)
    torch.testing.assert_close(found[0], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), (5, 0.7, 3)),
        (("sampling.variation=null",), (5, None, 3)),
        (("sampling.variation=false",), (5, None, 3)),
        (("sampling.top_k=null", "sampling.max_notes=null"), (None, 0.7, None)),
        (("sampling.top_k=false", "sampling.max_notes=false"), (None, 0.7, None)),
        (("sampling.variation=0.2", "sampling.top_k=2"), (2, 0.2, 3)),
    ],
)
def test_null_switches_settings_of_the_model_off(config, given, expected):
    model = music_model(REMI())
    model.content.sampling = {"top_k": 5, "variation": 0.7, "max_notes": 3, "temperature": 0.4}
    found = build_request(model, config("generate", *given)).sampling
    assert (found.top_k, found.variation, found.max_notes) == expected
    assert found.temperature == 0.4
    options = {each.partition(".")[2].partition("=")[0]: None for each in given}
    if "null" in str(given):
        assert model.request(**options, temperature=None).sampling == found


def test_one_allowed_token_always_stays():
    allowed = torch.tensor([[False, False, True]])
    narrow = SamplingParams(top_k=1, top_p=0.01, min_p=1.0, typical_p=1e-9)
    for params in (SamplingParams(), narrow, SamplingParams(0.0), SamplingParams(variation=1.0)):
        logits = torch.tensor([[9.0, 8.0, -1e9]])
        uniform = torch.tensor([0.999999], dtype=torch.float64)
        assert draw(processed(logits, params, allowed), uniform).item() == 2


def test_draws_follow_the_probabilities_and_never_leave_them():
    logits = torch.randn(1, 40)
    allowed = torch.rand(1, 40) > 0.5
    params = SamplingParams(temperature=1.3, top_p=0.8)
    logits = processed(logits, params, allowed)
    p = logits.softmax(-1)[0]
    uniform = (torch.arange(20000, dtype=torch.float64) + 0.5) / 20000
    drawn = draw(logits.expand(20000, -1), uniform)
    share = drawn.bincount(minlength=40) / 20000
    torch.testing.assert_close(share, p.float(), atol=1e-4, rtol=0)
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert (p[draw(logits.expand(2, -1), ends)] > 0).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"top_k": 0},
        {"top_p": 0},
        {"min_p": 1.1},
        {"typical_p": 0},
        {"max_notes": 0},
        {"max_notes": [2, "all"]},
        {"avoid_parallels": "maybe"},
        {"lag_bias": 3},
        {"lag_bias": [torch.nan]},
    ],
)
def test_impossible_settings_are_named(wrong):
    name = next(iter(wrong))
    with pytest.raises(UserError, match=f"^{name}="):
        SamplingParams(**wrong)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_logits_of_a_diverged_model_are_reported(wrong):
    logits = torch.tensor([[0.0, wrong, 0.0]])
    with pytest.raises(UserError, match="diverged"):
        check_finite(logits)


def test_guidance_leads_new_pieces_away_from_the_relative_key():
    model = musicgen.load("bach-chorales")
    options = {"key": "F#m", "bars": 2, "temperature": 0, "guidance": 2}
    (piece,) = model.generate(None, **options)
    tokens, length = piece.tokens, len(piece.prompt.tokens)
    allowed = allowed_tokens(model, piece, **options)
    index = model.tokenizer.vocabulary.id
    heard = np.where(tokens == index("Key_3m"), index("Key_3"), tokens)
    assert (heard != tokens).sum() == 1
    logits, others = (
        model.model(
            torch.from_numpy(ids)[None],
            positions=torch.from_numpy(model.positions(ids))[None],
            noise=NoiseKey((0,)),
        )[0, length - 1 : -1]
        for ids in (tokens, heard)
    )
    guided = 2 * logits - others
    best, plain = (each.masked_fill(~allowed, -torch.inf).argmax(1) for each in (guided, logits))
    assert best.tolist() == tokens[length:].tolist()
    assert best.tolist() != plain.tolist()
