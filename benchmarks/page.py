"""The page that composes: size, logits, greedy music, and in Chromium speed, memory and answers.

    python -m benchmarks.page --model pop-piano-small [--screenshots FOLDER]

Node runs the worker of the page itself for logits and greedy music. Rates are of wall-clock time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import musicgen
from benchmarks.browsers import Browser, Chromium, installed
from musicgen.composer import FAMILIES, compose_groove, compose_pop
from musicgen.data.corpora import BachChorales
from musicgen.export.page import with_half_weights
from musicgen.files import write_text
from musicgen.generation.form import lag_bias
from musicgen.generation.model import MusicModel
from musicgen.midi import Score, dumps
from musicgen.random import NoiseKey
from musicgen.report.markup import asset

RESULTS = Path(__file__).parent / "results"
SEED = 4242  # of pieces that no model was trained on
NUM_PROMPTS, NUM_STEPS, NUM_GREEDY = 20, 512, 5
PHRASE, SECONDS_PER_NOTE = "adgkgdadgkgd", 0.3
READY = "document.getElementById('summary')?.textContent === 'No music yet'"
# The page's worker in node: logits after each token, and greedy continuations of files.
LAB = """
const postMessage = () => {}; let onmessage;
%s
const data = require("./data.json");
unpackWeights(data.weights).then((bytes) => {
  const content = data.content;
  desk = new Desk({ ...content, bytes });
  const { composer } = desk;
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
  console.log(JSON.stringify(greedy));
});
"""


def held_out(model: MusicModel) -> list[Score]:
    """Return pieces that no model was trained on."""
    if model.tokenizer.name == "remi":
        return [compose_pop(SEED, i) for i in range(NUM_PROMPTS)]
    if model.tokenizer.name == "chorale":
        corpus = BachChorales()
        pieces = [piece for piece in corpus.pieces() if piece.split == "test"]
        return [corpus.read_piece(piece) for piece in pieces[:NUM_PROMPTS]]
    names = list(FAMILIES)
    places = [divmod(i, len(names)) for i in range(NUM_PROMPTS)]
    return [compose_groove(SEED, names[family], style, 0) for style, family in places]


@torch.inference_mode()
def against_torch(model: MusicModel, page: Path) -> dict[str, Any]:
    """Compare the page's worker with torch, which has the page's weights."""
    scores = held_out(model)
    prompts = [model.tokenizer.encode(score)[:NUM_STEPS] for score in scores]
    exact = MusicModel(with_half_weights(model.model), model.tokenizer, model.content, model.path)
    text = page.read_text(encoding="utf-8")

    def part(name: str) -> str:
        found = re.search(rf'<script type="[^"]*" id="{name}">(.*?)</script>', text, re.S)
        assert found is not None
        return found[1]

    data = {
        "content": json.loads(part("content")),
        "weights": part("weights"),
        "prompts": [tokens.tolist() for tokens in prompts],
        "files": [list(dumps(score)) for score in scores[:NUM_GREEDY]],
    }
    with TemporaryDirectory() as folder:
        (Path(folder) / "data.json").write_text(json.dumps(data))
        (Path(folder) / "lab.js").write_text(
            LAB % f"{asset('composer/weights.js')}\n{part('worker')}"
        )
        run = subprocess.run(
            ["node", "lab.js"], cwd=folder, capture_output=True, text=True, check=True
        )
        found = np.fromfile(Path(folder) / "logits.bin", np.float32)
    greedy = json.loads(run.stdout)
    found = found.reshape(-1, len(model.tokenizer.vocabulary))
    rounded = with_half_weights(model.model)
    bias = lag_bias(rounded, model.sampling())
    expected = []
    for tokens in prompts:
        ids, positions = (torch.from_numpy(x)[None] for x in (tokens, model.positions(tokens)))
        noise, state = NoiseKey((0,)), None
        for part in (slice(1), slice(1, None)):
            logits, state = rounded.forward_with_state(
                ids[:, part], positions=positions[:, part], noise=noise, state=state
            )
            if bias:
                state.lag_bias[:, : len(bias)] = torch.tensor(bias)
            expected.append(logits[0])
    logits = torch.cat(expected).numpy()
    equal = []
    for score, tokens in zip(scores, greedy, strict=False):
        [music] = exact.generate(score, prompt_bars=2, bars=4, temperature=0, engine="eager")
        equal.append(music.tokens.tolist() == tokens)
    return {
        "steps": len(logits),
        "largest difference of a logit": float(np.abs(found - logits).max()),
        "equal most probable tokens": float((found.argmax(1) == logits.argmax(1)).mean()),
        "equal greedy continuations": f"{sum(equal)} of {len(equal)}",
    }


def in_browser(kind: type[Browser], page: Path) -> dict[str, Any]:
    """Compose from nothing, and return the rate that the page says."""
    with kind() as browser:
        begin = time.perf_counter()
        browser.open(page)
        browser.wait(READY)
        seconds = time.perf_counter() - begin
        browser.evaluate("document.getElementById('continue').click()")
        browser.wait(
            "/tokens a second/.test(document.getElementById('status').textContent)", seconds=300
        )
        status = browser.evaluate("document.getElementById('status').textContent")
    rate = float(re.findall(r"(\d+) tokens", status)[0])
    return {"seconds until ready": round(seconds, 2), "tokens a second": rate}


def in_chromium(page: Path, num_tokens: int, screenshots: Path | None) -> dict[str, Any]:
    """Play a phrase by keys, wait for the answer, then compose until the memory must show."""
    with Chromium() as browser:
        browser.show_as(1200, 900)
        browser.open(page)
        browser.wait(READY)
        browser.evaluate("document.getElementById('answer').click()")
        for key in PHRASE:
            browser.key(key, "keyDown")
            time.sleep(SECONDS_PER_NOTE - 0.1)
            browser.key(key, "keyUp")
            time.sleep(0.1)
        browser.wait("page.player.playing")
        answer = browser.evaluate("page.firstNotes")
        if screenshots:
            time.sleep(2)
            for name, (width, height, dark, phone) in {
                "desktop": (1200, 900, False, False),
                "dark": (1200, 900, True, False),
                "phone": (390, 844, False, True),
            }.items():
                browser.show_as(width, height, dark=dark, phone=phone)
                time.sleep(0.5)
                browser.screenshot(screenshots / f"{page.stem}-{name}.png")
        browser.evaluate("document.getElementById('answer').click(); page.clear()")
        browser.evaluate("document.getElementById('bars').value = 999; page.continue()")
        megabytes: dict[str, float] = {}
        for tokens in (num_tokens // 10, num_tokens):
            browser.wait(f"page.tokens >= {tokens} || !page.composing", seconds=900)
            megabytes[str(browser.evaluate("page.tokens"))] = memory(browser)
        return {
            "milliseconds from the pause to the answer's first notes": answer,
            "megabytes of all processes by tokens": megabytes,
            "requests": [each.partition(":")[0] for each in browser.requests()],
            "problems": browser.problems(),
        }


def memory(browser: Browser) -> float:
    """Return the memory of a browser's processes that they do not share, in MB."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/smaps_rollup"):
        try:
            if browser.profile in (status.parent / "cmdline").read_text():
                total += int(re.findall(r"Pss:\s+(\d+)", status.read_text())[0])
        except (OSError, IndexError):
            continue  # it has ended
    return round(total / 1024, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="pop-piano-small")
    parser.add_argument("--screenshots", type=Path)
    parser.add_argument("--tokens", type=int, default=20_000, help="to compose for the memory")
    parser.add_argument("--out", type=Path, default=RESULTS / "page.json")
    options = parser.parse_args()
    model = musicgen.load(options.model)
    with TemporaryDirectory() as folder:
        page = Path(folder) / f"{options.model}.html"
        model.save_page(page)
        result = {
            "command": "python -m benchmarks.page "
            f"--model {options.model} --tokens {options.tokens}",
            "load average": os.getloadavg()[0],
            "megabytes": round(page.stat().st_size / 1e6, 2),
            "against torch": against_torch(model, page),
        }
        for kind in installed():
            result[kind.name] = in_browser(kind, page)
            if kind is Chromium:
                result[kind.name] |= in_chromium(page, options.tokens, options.screenshots)
    earlier = json.loads(options.out.read_text()) if options.out.exists() else {}
    write_text(options.out, json.dumps({**earlier, options.model: result}, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
