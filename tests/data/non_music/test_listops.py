"""ListOps: grammar, values, splits."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from musicgen.data.non_music import ListOps
from musicgen.data.non_music.listops import TOKENS, generate
from musicgen.errors import ParameterError

FUNCTIONS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda x: int(statistics.median(x)),
    "[SM": lambda x: sum(x) % 10,
}


SETTINGS = {
    **{"num_train": 60, "num_val": 20, "num_test": 30, "min_length": 8, "max_length": 40},
    **{"max_depth": 10, "max_args": 10, "corpus_seed": 0},
}


def parse(tokens):
    """Return value, depth, most arguments and fewest of an expression, and the tokens after it."""
    first, *rest = tokens
    if first not in FUNCTIONS:
        return int(first), 1, 0, 99, rest
    values, depths, most, fewest = [], [], [], []
    while rest[0] != "]":
        value, depth, most_in, fewest_in, rest = parse(rest)
        values.append(value)
        depths.append(depth)
        most.append(most_in)
        fewest.append(fewest_in)
    count = len(values)
    depth = 1 + max(depths)
    return FUNCTIONS[first](values), depth, max(*most, count), min(*fewest, count), rest[1:]


@pytest.mark.parametrize(
    ("lengths", "max_depth", "max_args"), [(range(4, 65), 4, 5), (range(300, 900), 10, 10)]
)
def test_expressions_follow_the_grammar_and_have_the_right_values(lengths, max_depth, max_args):
    rng = np.random.default_rng(3)
    made = generate(300, rng, lengths=lengths, max_depth=max_depth, max_args=max_args)
    texts = set()
    for i in range(len(made)):
        example = made[i]
        (ids,) = example.sequences
        tokens = [TOKENS[id_] for id_ in ids]
        value, depth, most, fewest, rest = parse(tokens)
        assert (value, rest) == (example.target, [])
        assert len(tokens) in lengths
        assert tokens[0] in FUNCTIONS
        assert depth <= max_depth
        assert 2 <= fewest <= most <= max_args
        texts.add(" ".join(tokens))
    assert len(texts) == 300
    words = " ".join(texts).split()
    operators = [words.count(name) for name in FUNCTIONS]
    assert max(operators) < 1.5 * min(operators)


def test_splits_are_apart_and_kept(tmp_path):
    corpus = ListOps(tmp_path, **SETTINGS)
    splits = {name: corpus.split(name, 40) for name in ("train", "val", "test")}
    assert [len(split) for split in splits.values()] == [60, 20, 30]
    texts = {
        name: {split[i].sequences[0].tobytes() for i in range(len(split))}
        for name, split in splits.items()
    }
    assert len(set.union(*texts.values())) == 110
    for split in splits.values():
        assert [len(split[i].sequences[0]) for i in range(len(split))] == split.lengths.tolist()
    (file,) = tmp_path.iterdir()
    stamp = file.stat().st_mtime_ns
    again = ListOps(tmp_path, **SETTINGS).split("test", 40)
    assert file.stat().st_mtime_ns == stamp
    assert all(np.array_equal(getattr(again, k), getattr(splits["test"], k)) for k in vars(again))
    other = ListOps(tmp_path, **SETTINGS | {"corpus_seed": 1}).split("test", 40)
    assert not np.array_equal(other.tokens, again.tokens)


def test_lengths_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"length=30: expected max_length=40"):
        ListOps(tmp_path, **SETTINGS).split("train", 30)
    with pytest.raises(ParameterError, match="max_length=4: expected more: only"):
        generate(10**6, np.random.default_rng(0), lengths=range(4, 5), max_depth=2, max_args=2)
