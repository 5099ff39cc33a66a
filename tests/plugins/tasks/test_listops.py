"""ListOps: grammar, values, splits."""

import statistics

import pytest

from musicgen.errors import ParameterError
from musicgen.plugins.tasks import ListOps
from musicgen.plugins.tasks.listops import TOKENS, generate

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
    """Return value, depth and numbers of arguments of an expression, and the tokens after it."""
    first, *rest = tokens
    if first not in FUNCTIONS:
        return int(first), 1, [], rest
    values, depths, counts = [], [], []
    while rest[0] != "]":
        value, depth, inside, rest = parse(rest)
        values.append(value)
        depths.append(depth)
        counts += inside
    return FUNCTIONS[first](values), 1 + max(depths), [*counts, len(values)], rest[1:]


@pytest.mark.parametrize("limits", [(4, 64, 4, 5), (300, 899, 10, 10)])
def test_expressions_follow_the_grammar_and_have_the_right_values(limits):
    min_length, max_length, max_depth, max_args = limits
    made = generate(300, 3, *limits)
    words = []
    for text, value in made.items():
        tokens = [TOKENS[id_] for id_ in text]
        parsed, depth, counts, rest = parse(tokens)
        assert (parsed, rest) == (value, [])
        assert min_length <= len(tokens) <= max_length
        assert tokens[0] in FUNCTIONS
        assert depth <= max_depth
        assert 2 <= min(counts) <= max(counts) <= max_args
        words += tokens
    assert len(made) == 300
    operators = [words.count(name) for name in FUNCTIONS]
    assert max(operators) < 1.5 * min(operators)
    # An argument is an operation with probability 1/4: of trees that are cut by nothing.
    if max_depth == 10:
        assert 0.15 < sum(operators) / (len(words) - words.count("]")) < 0.3


def test_splits_are_apart_and_kept(tmp_path):
    corpus = ListOps(tmp_path, **SETTINGS)
    splits = {name: corpus.split(name, 40) for name in ("train", "val", "test")}
    assert [len(split) for split in splits.values()] == [60, 20, 30]
    assert len({text for split in splits.values() for text, _ in split.items}) == 110
    for split in splits.values():
        assert [len(split[i].sequences[0]) for i in range(len(split))] == split.lengths.tolist()
        assert [split[i].target for i in range(len(split))] == [value for _, value in split.items]
    (file,) = tmp_path.iterdir()
    stamp = file.stat().st_mtime_ns
    again = ListOps(tmp_path, **SETTINGS).split("test", 40)
    assert file.stat().st_mtime_ns == stamp
    assert again.items == splits["test"].items
    other = ListOps(tmp_path, **SETTINGS | {"corpus_seed": 1}).split("test", 40)
    assert other.items != again.items


def test_lengths_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"length=30: expected max_length=40"):
        ListOps(tmp_path, **SETTINGS).split("train", 30)
    with pytest.raises(ParameterError, match="max_length=4: expected more: only"):
        generate(10**6, 0, 4, 4, 2, 2)


@pytest.mark.parametrize("setting", ["max_args", "max_depth"])
def test_sizes_that_make_no_lists_are_named(setting):
    with pytest.raises(ParameterError, match=f"{setting}=0: expected an integer"):
        ListOps("x", **SETTINGS | {setting: 0})
