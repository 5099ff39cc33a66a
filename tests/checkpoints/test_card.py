"""Cards: what stands in words follows from the measures, and what was not measured is left out."""

from __future__ import annotations

import csv
from dataclasses import replace

from musicgen.checkpoints.card import _LICENCES, CardFacts, model_card, run_facts
from musicgen.data import corpora
from musicgen.evaluation.generated_files import KNOWN
from musicgen.evaluation.verdict import HELD_OUT, KEY_SHARE, NATS, ORIGINALS, TRIGRAM
from tests.checkpoints.small_model import small_model

CONTENT = small_model().content
COPIES = "continuations that copy"
INTERVAL = {"low": 0.8, "high": 0.9}


def section(card: str, title: str) -> str:
    return card.partition(f"## {title}")[2].partition("\n## ")[0].partition("<details>")[0]


def test_a_measure_is_bad_if_the_originals_lie_beyond_its_interval_on_the_better_side():
    better = {"notes in key": (0.95, 0.85, 0.7), "parallel fifths": (0.7, 0.85, 0.95)}
    measures = [
        {"of": f"Case {i}", "measure": name, "generated": 0.85, **INTERVAL, "originals": value}
        for name, values in better.items()
        for i, value in enumerate(values)
    ]
    measures[0]["beside"] = "Bach"
    card = model_card(CONTENT, 10, CardFacts(measures=measures, limits=["jazz"]))
    bad = section(card, "What it is bad at").split("\n")
    assert [line for line in bad if line] == [
        "Worse than what stands beside it, by 95% intervals over pieces.",
        "Case 0:",
        "- notes in key: 0.85 (0.8 to 0.9); Bach: 0.95",
        "- parallel fifths: 0.85 (0.8 to 0.9); the originals: 0.7",
        "Beside what was measured:",
        "- jazz",
    ]
    good = section(card, "What it does well")
    assert [line for line in good.split("\n") if line.startswith("Case")] == ["Case 1:", "Case 2:"]


def test_tables_are_behind_folds_without_what_was_not_measured():
    rows = [
        {"of": "Songs", "measure": "a", "n": 3, "generated": -0.5, "originals": None},
        {"of": "Songs", "measure": "b", "n": 0, "generated": None, "originals": None},
    ]
    card = model_card(CONTENT, 1234, CardFacts(name="mine", measures=rows))
    fold = card.partition("<details><summary>Songs: all measures</summary>\n\n")[2]
    assert fold.startswith("|  | n | this model |\n| --- | --- | --- |\n| a | 3 | −0.5 |\n\n</det")
    assert 'load("mine")\n' in card
    assert "| weights | 1,234 |" in card
    bare = model_card(CONTENT, 10)
    assert [line for line in bare.split("\n") if line.startswith("## ")] == [
        "## What it learned from"
    ]
    assert "MidiFolder: its licence is not recorded" in bare
    assert "n/a" not in card + bare


def test_licences_are_those_of_corpora():
    assert set(_LICENCES) <= set(corpora.__all__)


def test_an_evaluation_of_the_run_is_what_the_card_says(tmp_path):
    columns = "run,measure,n,mean,low,high,beside,beside_mean\n"
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "metrics.csv").write_text("step,train/hours\n")
    (tmp_path / "evaluation/evaluation.csv").write_text(
        f"{columns}a,{NATS},12,3.5,3.25,3.75,{TRIGRAM},4.5\na,{KEY_SHARE},12,.8,.75,.85,"
        f"{ORIGINALS},.9\na,{KNOWN},12,9.04,8,10,{HELD_OUT},13.29\na,{COPIES},12,0.25,0,.5,,nan\n"
    )
    content = replace(CONTENT, config=CONTENT.config | {"trainer": {"accelerator": "cpu"}})
    card = model_card(content, 10, run_facts(tmp_path / "checkpoints/last.ckpt", content))
    assert "- nats a note: 3.5 (3.25 to 3.75); trigram model: 4.5" in section(card, "What it does")
    bad = section(card, "What it is bad at")
    assert "- notes in key: 0.8 (0.75 to 0.85); originals: 0.9" in bad
    copied = section(card, "What it copies")
    assert "has 9.04 (8 to 10) notes on average; of held-out pieces, cut to the same size" in copied
    assert "25% of the pieces copy." in copied


def test_a_run_tells_its_loss_time_and_energy(tmp_path):
    trainer = {"accelerator": "cpu"}
    content = replace(CONTENT, config=CONTENT.config | {"trainer": trainer})
    checkpoint = tmp_path / "checkpoints/best.ckpt"
    assert run_facts(checkpoint, content) == CardFacts()
    rows = [(299, 0.5, 0.75, 2.5), (599, 1.5, 2.0, 2.75)]  # the best is that after 300 steps
    with (tmp_path / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "train/hours", "train/cpu_hours", "val/nats_per_note"])
        writer.writerows([(9, "", "", ""), *rows])
    card = model_card(content, 10, run_facts(checkpoint, content))
    assert "| training | 300 steps on windows of 16 tokens; 2.500 nats a note of val" in card
    cost = section(card, "What its training took")
    assert cost.strip().startswith(
        "1.5 hours. 2 hours of one core: about 20 Wh, an estimate by 10 W"
    )
    trainer["accelerator"] = "gpu"  # whose energy the CPU's time does not tell
    card = model_card(content, 10, run_facts(checkpoint, content))
    assert section(card, "What its training took").strip() == "1.5 hours."
