"""Groups of runs that differ in nothing but their seeds."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from musicgen.evaluation.groups import judge_runs
from musicgen.evaluation.runs import Run
from musicgen.evaluation.verdict import NATS_PER_NOTE, TRIGRAM
from musicgen.report.tables import readable

PIECES = [f"piece {i}" for i in range(12)]


def runs_and_values(*groups: str, seed=0, better=0.0, spread=0.5):
    """Runs, and their losses on pieces: better in a group `b`, and different by seed."""
    rng = np.random.default_rng(seed)
    of_pieces, runs, compared = rng.normal(0, 0.1, len(PIECES)), [], {}
    baseline = dict(zip(PIECES, 3 + of_pieces, strict=True))
    for number, group in enumerate(groups, start=1):
        content: Any = SimpleNamespace(vocabulary_hash="")
        model: Any = SimpleNamespace(content=content, path=Path(group))
        is_alone = groups.count(group) == 1
        name = group if is_alone else f"{group}, seed {number}"
        loss = 2 + rng.normal(0, spread) + of_pieces + rng.normal(0, 0.01, len(PIECES))
        loss -= better * (group == "b")
        values = dict(zip(PIECES, loss, strict=True))
        runs.append(Run(name, group, model, model, None))
        compared[name] = {(NATS_PER_NOTE, TRIGRAM): (values, baseline)}
    return runs, compared


def judged(tmp_path, *groups, num_held_out=12, **options):
    runs, compared = runs_and_values(*groups, **options)
    return judge_runs(runs, compared, tmp_path, num_held_out, 0), compared


def test_pairs_of_groups_are_compared_over_pieces_and_seeds(tmp_path):
    (rows, title, judgements), compared = judged(tmp_path, *"abbac")
    assert title == "Comparison of a (2 seeds), b (2 seeds), c"
    assert [(row["first"], row["second"]) for row in rows] == [("a", "b"), ("a", "c"), ("b", "c")]
    means = {
        name: np.mean([*pair[0].values()])
        for name, (pair,) in zip(compared, (x.values() for x in compared.values()), strict=True)
    }
    assert rows[0]["first_mean"] == pytest.approx((means["a, seed 1"] + means["a, seed 4"]) / 2)
    assert rows[0]["second_mean"] == pytest.approx((means["b, seed 2"] + means["b, seed 3"]) / 2)
    assert [row["answer"] for row in rows] == 3 * ["unclear"]
    assert "3 differences of 3 may be chance" in judgements[-1].answer
    (rows, *_), _ = judged(tmp_path, *"aabb", spread=0.01, better=0.5)
    assert rows[0]["answer"] == "better"
    (rows, *_), _ = judged(tmp_path, *"ab", spread=0.01, better=0.5)
    assert rows[0]["p_holm"] == 2 / 2**12  # of single runs, the permutation test


def test_seeds_that_differ_are_no_difference_of_the_settings(tmp_path):
    found = [judged(tmp_path, *"aaabbb", seed=seed)[0][0][0]["answer"] for seed in range(12)]
    assert found.count("unclear") >= 11


def test_one_group_has_its_mean_over_seeds(tmp_path):
    (rows, title, (judgement,)), compared = judged(tmp_path, *"aaa")
    assert title == "a, 3 seeds"
    (row,) = rows
    values = [np.mean([*pair[0].values()]) for x in compared.values() for pair in x.values()]
    assert row["mean"] == pytest.approx(np.mean(values))
    half = 4.303 * np.std(values, ddof=1) / 3**0.5  # the pieces differ little
    assert row["high"] - row["mean"] == pytest.approx(half, rel=0.1)
    assert readable(rows)[0]["n"] == 12
    assert "differ in nothing but their seeds" in judgement.answer


@pytest.mark.parametrize("num_held_out", [5, 12])
def test_few_held_out_pieces_name_the_settings_that_hold_out_more(
    tmp_path, num_held_out, monkeypatch
):
    monkeypatch.setitem(globals(), "PIECES", PIECES[:4])
    (_, _, judgements), _ = judged(tmp_path, *"ab", num_held_out=num_held_out)
    assert judgements[-1].answer == "too few pieces to tell 1 of 1 from chance"
    advice = judgements[-1].advice
    assert ("loader.val_fraction and loader.test_fraction" in advice) == (num_held_out == 5)
    assert ("num_prompts" in advice) == (num_held_out == 12)
    if num_held_out == 5:
        assert advice.startswith("6 pieces or more are needed, where 5 can be measured")
