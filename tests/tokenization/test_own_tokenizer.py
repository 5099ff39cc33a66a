"""The tokenizer of one's own in tokenizers/README.md."""

import re
from pathlib import Path

import numpy as np

from musicgen.midi import Score, Track, notes_from
from musicgen.tokenization import REMI, Tokenizer
from musicgen.tokenization.vocabulary import within

README = Path(__file__).parents[2] / "tokenizers" / "README.md"


def test_the_tokenizer_of_the_readme_changes_crops_and_loads_from_its_file(tmp_path):
    (code,) = re.findall(r"```python\n(from functools.*?)```", README.read_text("utf-8"), re.S)
    names = {}
    exec(code, names)
    tokenizer = names["DynamicREMI"](max_transposition=0)
    score = Score(tracks=[Track(notes=notes_from([(480 * i, 480, 60, 62) for i in range(8)]))])
    tokens = tokenizer.encode(score)
    assert np.array_equal(tokens, REMI().encode(score))
    starts, velocities = (
        tokenizer.crops.starts(tokens, bar_length=16),
        tokenizer.families["Velocity"],
    )
    rng, seen = np.random.default_rng(0), set()
    for _ in range(200):
        crop = tokenizer.augmentation.crop(tokens, starts, 99, bar_length=16, rng=rng)
        is_velocity = within(crop, velocities)
        assert np.array_equal(crop[~is_velocity], tokens[~is_velocity])
        (velocity,) = set(crop[is_velocity].tolist())
        seen.add(tokenizer.velocities[velocity - velocities.start])
    assert seen == set(range(54, 71, 2))
    tokenizer.save(tmp_path / "mine.json")
    assert type(Tokenizer.load(tmp_path / "mine.json")) is names["DynamicREMI"]
