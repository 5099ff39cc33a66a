"""The page's model, its weights and its sampling are those of Python."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

import musicgen
from musicgen.composer import compose_pop
from musicgen.generation.logits_processors import draw
from musicgen.generation.sampling import SamplingParams
from musicgen.plugins.page.document import (
    javascript_step,
    pack_weights,
    with_half_weights,
)
from musicgen.random import NoiseKey
from musicgen.tokenization.coordinates import Coordinates
from tests.plugins.page.music import SEED, TOKENIZERS, run_tokenizer
from tests.plugins.page.node import needs_node, run_worker

pytestmark = needs_node
READ = [(60, 1), (60, 0.5), (60, 2), (48, 2), (60, 0.5)]  # tokens, temperature


@torch.inference_mode()
def test_a_copy_head_has_the_temperature_of_the_page(tmp_path):
    model = with_half_weights(musicgen.load("songs-small").model)
    tokenizer = TOKENIZERS["songs"]
    tokens = tokenizer.encode(compose_pop(SEED, 0))[:60]
    source, layout, weights = javascript_step(model)
    data = {
        "step": layout,
        "bytes": list(weights),
        "tokens": tokens.tolist(),
    }
    # The last tokens at several temperatures: after others, alone, and after going back.
    body = f"""
        const bytes = Uint8Array.from(data.bytes).buffer;
        const model = new Model(data.step, {source}, bytes, tokenizer);
        const read = (tokens, temperature) => {{
          for (let i = model.rewind(tokens, 16, temperature); i < tokens.length; i++) model.feed(tokens[i]);
          return [...model.logits];
        }};
        const [drawn, filters] = model.split({{ temperature: 0.5, top_p: 0.9 }});
        read(data.tokens.slice(0, 48), 1);
        const found = [1, drawn, 2].map((temperature) => read(data.tokens, temperature));
        found.push(read(data.tokens.slice(0, 48), 2), read(data.tokens, drawn));
        model.reset(16);
        model.form = [[-9], [-9]]; // no copies from the same bar
        found.push(read(data.tokens, 1));
        return {{ found, filters, greedy: model.split({{ temperature: 0 }}) }};
    """
    answer = run_tokenizer(tmp_path, "songs", body, **data)
    assert answer["filters"] == {"temperature": 1, "top_p": 0.9}
    assert answer["greedy"] == [1, {"temperature": 0}]
    positions = torch.from_numpy(Coordinates(tokenizer).of(tokens, model.coordinate_names))[None]
    ids = torch.from_numpy(tokens)[None]
    pairs = zip(answer["found"], [*READ, (60, 1)], strict=True)
    for number, (found, (length, temperature)) in enumerate(pairs):
        last, before = slice(length - 1, length), slice(length - 1)
        _, state = model.forward_with_state(
            ids[:, before], positions=positions[:, before], noise=NoiseKey((0,))
        )
        settings = model.copy_head.settings(1)
        settings.temperature.fill_(temperature)
        if number == len(READ):
            settings.lag_bias[:, 0] = -9
        expected, _ = model.forward_with_state(
            ids[:, last],
            positions=positions[:, last],
            noise=NoiseKey((0,)),
            state=state,
            copy_settings=settings,
        )
        np.testing.assert_allclose(found, expected[0, 0], atol=2e-3)
    assert np.abs(np.subtract(answer["found"][0], answer["found"][-1])).max() > 0.01


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.7, "top_p": 0.9},
        {"top_k": 4, "min_p": 0.1},
        {"typical_p": 0.6},
        {"top_p": 0.8, "variation": 0.7},
        {"top_p": 0.9, "variation": 0.7, "min_p": 0.2},
        {"top_k": 3, "variation": 0.9},
        {"temperature": 0.8, "top_k": 1, "variation": 0.9},
    ],
)
def test_tokens_are_drawn_alike(settings, tmp_path):
    rng, params = np.random.default_rng(0), SamplingParams(**settings)
    logits = np.log(rng.dirichlet(np.full(12, 0.5), 200))
    allowed, uniform = rng.random((200, 12)) < 0.7, rng.random(200)
    allowed[:, 0] = True
    drawn = [x.tolist() for x in (logits, allowed.astype(int), uniform)]
    body = """
        const [logits, allowed, uniform, params] = data;
        return logits.map((row, i) => sampleToken(row, allowed[i], params, uniform[i]));
    """
    masked = torch.from_numpy(np.where(allowed, logits, -np.inf))
    for process in params.processors():
        masked = process(torch.empty(200, 0), masked)
    expected = draw(masked, torch.from_numpy(uniform))
    assert run_worker(tmp_path, [*drawn, asdict(params)], body) == expected.tolist()


def test_weights_are_unpacked_bit_for_bit(tmp_path):
    halves = np.arange(1 << 16, dtype=np.uint16)  # all numbers of half precision
    noise = np.random.default_rng(0).integers(0, 256, 1001, dtype=np.uint8)
    parts = [halves.tobytes(), noise.tobytes(), b""]
    body = """
        return Promise.all(data.map(unpackWeights)).then((all) => all.map((each) => [...new Uint8Array(each)]));
    """
    found = run_worker(tmp_path, [*map(pack_weights, parts)], body, ["weights"])
    assert [bytes(each)[: len(part)] for each, part in zip(found, parts, strict=True)] == parts
    assert [len(each) for each in found] == [1 << 17, 1002, 0]
