"""Measure the composing page: its size, speed, memory, and how far its logits are from torch's.

    python -m benchmarks.page --model songs-small

Node runs the worker of the page itself. Rates are of wall-clock time.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import musicgen
from benchmarks.measure import RESULTS
from musicgen.composer import compose_pop
from musicgen.data.corpora import BachChorales
from musicgen.files import write_text
from musicgen.generation.decoder import lag_bias
from musicgen.generation.model import MusicModel
from musicgen.midi import Score, dumps
from musicgen.plugins.page.document import read_page, script, with_half_weights
from musicgen.random import NoiseKey

SEED = 4242  # of pieces that no model was trained on
NUM_PROMPTS, NUM_STEPS, NUM_GREEDY = 20, 512, 5
# The page's worker in node: logits after each token, and greedy continuations of files.
LAB = """
const postMessage = () => {}; let onmessage;
%s
const data = require("./data.json");
unpackWeights(data.weights).then((bytes) => {
  const content = data.content;
  session = new Session({ ...content, bytes });
  const { composer } = session;
  const { model } = composer;
  const logits = data.prompts.map((tokens) => {
    model.reset(composer.prompt.barLength);
    return tokens.flatMap((token) => { model.feed(token); return [...model.logits]; });
  });
  const greedy = data.files.map((file) => {
    composer.begin(makePrompt(composer.tokenizer, readMidi(Uint8Array.from(file)), 2));
    const end = composer.endTime + 4 * composer.prompt.barLength;
    const params = { ...content.sampling, temperature: 0 };
    for (const _ of composer.compose({ end, seed: 0, params }));
    return composer.tokens;
  });
  require("fs").writeFileSync("logits.bin", Float32Array.from(logits.flat()));
  composer.begin(makePrompt(composer.tokenizer, readMidi(Uint8Array.from(data.files[0])), 2));
  const begin = performance.now(), before = composer.tokens.length;
  let first = 0;
  const end = composer.endTime + 64 * composer.prompt.barLength;
  for (const _ of composer.compose({ end, seed: 0, params: content.sampling })) {
    if (!first && composer.tokens.length > before + 500) first = process.memoryUsage().rss;
  }
  const tokens = composer.tokens.length - before;
  const rate = (1000 * tokens) / (performance.now() - begin);
  const memory = [first, process.memoryUsage().rss].map((bytes) => Math.round(bytes / 1e6));
  console.log(JSON.stringify({ greedy, tokens, rate, memory }));
});
"""


def held_out(model: MusicModel) -> list[Score]:
    """Return pieces that no model was trained on."""
    if model.tokenizer.name != "chorale":
        return [compose_pop(SEED, i) for i in range(NUM_PROMPTS)]
    corpus = BachChorales()
    pieces = [piece for piece in corpus.pieces() if piece.split == "test"]
    return [corpus.read_piece(piece) for piece in pieces[:NUM_PROMPTS]]


@torch.inference_mode()
def in_node(model: MusicModel, page: Path) -> dict[str, Any]:
    """Compare the page's worker with torch, which has the page's weights; time its composing."""
    scores = held_out(model)
    prompts = [model.tokenizer.encode(score)[:NUM_STEPS] for score in scores]
    exact = MusicModel(with_half_weights(model.model), model.tokenizer, model.content, model.path)
    content, worker, weights = read_page(page)
    data = {
        "content": content,
        "weights": weights,
        "prompts": [tokens.tolist() for tokens in prompts],
        "files": [list(dumps(score)) for score in scores[:NUM_GREEDY]],
    }
    with TemporaryDirectory() as folder:
        (Path(folder) / "data.json").write_text(json.dumps(data))
        (Path(folder) / "lab.js").write_text(LAB % f"{script('weights')}\n{worker}")
        run = subprocess.run(
            ["node", "lab.js"], cwd=folder, capture_output=True, text=True, check=True
        )
        found = np.fromfile(Path(folder) / "logits.bin", np.float32)
    measured = json.loads(run.stdout)
    found = found.reshape(-1, len(model.tokenizer.vocabulary))
    rounded = with_half_weights(model.model)
    bias = lag_bias(rounded, model.sampling())
    expected = []
    for tokens in prompts:
        ids, positions = (torch.from_numpy(x)[None] for x in (tokens, model.positions(tokens)))
        noise, state, settings = NoiseKey((0,)), None, None
        if bias:
            assert rounded.copy_head is not None
            settings = rounded.copy_head.settings(1)
            settings.lag_bias[:, : len(bias)] = torch.tensor(bias)
        for part in (slice(1), slice(1, None)):
            logits, state = rounded.forward_with_state(
                ids[:, part],
                positions=positions[:, part],
                noise=noise,
                state=state,
                copy_settings=settings,
            )
            expected.append(logits[0])
    logits = torch.cat(expected).numpy()
    equal = []
    for score, tokens in zip(scores, measured["greedy"], strict=False):
        [music] = exact.generate(score, prompt_bars=2, bars=4, temperature=0, engine="eager")
        equal.append(music.tokens.tolist() == tokens)
    return {
        "steps": len(logits),
        "largest difference of a logit": float(np.abs(found - logits).max()),
        "equal most probable tokens": float((found.argmax(1) == logits.argmax(1)).mean()),
        "equal greedy continuations": f"{sum(equal)} of {len(equal)}",
        "tokens a second": round(measured["rate"]),
        "megabytes of node after 500 tokens and after all": measured["memory"],
        "tokens": measured["tokens"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="songs-small")
    parser.add_argument("--out", type=Path, default=RESULTS / "page.json")
    options = parser.parse_args()
    model = musicgen.load(options.model)
    with TemporaryDirectory() as folder:
        page = Path(folder) / f"{options.model}.html"
        model.save_page(page)
        result = {
            "command": f"python -m benchmarks.page --model {options.model}",
            "load average": os.getloadavg()[0],
            "megabytes": round(page.stat().st_size / 1e6, 2),
            **in_node(model, page),
        }
    earlier = json.loads(options.out.read_text()) if options.out.exists() else {}
    write_text(options.out, json.dumps({**earlier, options.model: result}, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
