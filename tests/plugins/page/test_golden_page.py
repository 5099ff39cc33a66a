"""What the composing page of a shipped model writes in node stays as it is.

`python -m tests.plugins.page.test_golden_page` writes page.json anew, for a change that means to alter it.
"""

import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import musicgen
from musicgen.midi import dumps
from musicgen.plugins.page.document import read_page
from tests.golden.test_golden import prompts
from tests.plugins.page.node import needs_node, run_worker

GOLDEN = Path(__file__).with_name("page.json")
MODELS = "songs-small", "bach-chorales"
# Two bars after a prompt, then the other parts of its melody; greedy decoding would repeat itself.
COMPOSE = """
    return unpackWeights(data.weights).then((bytes) => {
      const { composer, sampling } = new Session({ ...data.content, bytes });
      const file = readMidi(Uint8Array.from(data.file));
      composer.begin(makePrompt(composer.tokenizer, file, 1));
      const end = composer.endTime + 2 * composer.prompt.barLength;
      for (const _ of composer.compose({ end, seed: 1, params: sampling }));
      const continued = [...composer.tokens];
      const midi = [...writeMidi(composer.score)];
      composer.begin(makePrompt(composer.tokenizer, file, 2));
      for (const _ of composer.accompany(composer.melody, { seed: 2, params: sampling }));
      return { continued, midi, accompanied: composer.tokens };
    });
"""


def written(name: str, folder: Path) -> dict[str, str]:
    """A hash of each list of numbers that the page of a model writes."""
    musicgen.load(name).save_page(folder / "page.html")
    content, worker, weights = read_page(folder / "page.html")
    data = {
        "content": content,
        "weights": weights,
        "file": list(dumps(prompts(name)[0])),
    }
    found = run_worker(folder, data, worker + COMPOSE, ["weights"])
    return {
        kind: f"{len(numbers)} {hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16]}"
        for kind, numbers in found.items()
    }


@needs_node
@pytest.mark.parametrize("name", MODELS)
def test_a_page_writes_the_same_music(name, tmp_path):
    assert written(name, tmp_path) == json.loads(GOLDEN.read_text())[name]


def write_golden() -> None:
    values = {}
    for name in MODELS:
        with TemporaryDirectory() as folder:
            values[name] = written(name, Path(folder))
    GOLDEN.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    write_golden()
