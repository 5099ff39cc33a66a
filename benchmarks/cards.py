"""Write the cards of the package's models from what is stored: python -m benchmarks.cards

The figures come from results/pretrained.json, bach_chorales.json, bands.json and training_cost.json
and go to musicgen/pretrained/*/README.md. Nothing is trained or measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import musicgen
from benchmarks.tables import continuations, result
from musicgen.checkpoints.card import CardFacts, model_card
from musicgen.files import write_text
from musicgen.package_data import PRETRAINED

Row = dict[str, Any]
SCRAMBLED = (
    "init=RUN data.kind=pop data.num_pieces=2000 loader.batch_size=1 loader.length=2048 "
    "scheduler=warmup_cooldown scheduler.cooldown=0.6 scheduler.warmup_steps=30 "
    "optimizer.lr=6e-3 optimizer.adamw_lr=1e-3 callbacks.redraw_features=null"
)
RECIPES = {  # of each model: settings of train.py, steps, tokens a step
    "pop-piano-small": [
        ("experiment=pretrained/pop_piano_small", 4500, "2 × 1,024"),
        ("experiment=pretrained/copy_head init=RUN data.kind=pop", 2500, "2,048"),
        (
            "init=RUN data.kind=pop data.num_pieces=2000 "
            "loader.batch_size=1 optimizer.lr=5e-3 optimizer.adamw_lr=1e-3 "
            "callbacks.redraw_features=null trainer.max_steps=1800",
            1800,
            "2,048",
        ),
        (
            "init=RUN data.kind=pop data.num_pieces=2000 seed=2 "
            "loader.batch_size=1 optimizer.lr=4e-3 optimizer.adamw_lr=8e-4 "
            "scheduler.warmup_steps=30 callbacks.redraw_features=null trainer.max_steps=1100",
            1100,
            "2,048",
        ),
        (
            "experiment=pretrained/copy_head init=RUN data.kind=pop trainer.max_steps=300",
            300,
            "2,048",
        ),
        (
            "init=RUN data.kind=pop data.num_pieces=2000 "
            "loader.batch_size=1 loader.length=2048 scheduler=warmup_cooldown "
            "scheduler.cooldown=0.5 scheduler.warmup_steps=50 optimizer.lr=8e-3 "
            "optimizer.adamw_lr=1e-3 callbacks.redraw_features=null trainer.max_steps=4500",
            4500,
            "2,048",
        ),
        (f"{SCRAMBLED} loader.scramble=0.3 trainer.max_steps=1500", 1500, "2,048"),
        (f"{SCRAMBLED} loader.scramble=0.4 trainer.max_steps=2000", 2000, "2,048"),
        (f"{SCRAMBLED} loader.scramble=0.7 seed=2 trainer.max_steps=2000", 2000, "2,048"),
        (f"{SCRAMBLED} loader.scramble=0.85 seed=3 trainer.max_steps=2000", 2000, "2,048"),
    ],
    "groove-small": [
        ("experiment=pretrained/groove_small", 4500, "2 × 1,024"),
        (
            "experiment=pretrained/copy_head init=RUN data.kind=groove task=groove "
            "trainer.max_steps=2000",
            2000,
            "2,048",
        ),
        (
            "init=RUN task=groove data.kind=bands data.num_pieces=3000 loader.length=2048 "
            "loader.batch_size=1 optimizer.lr=1e-3 scheduler.warmup_steps=50 "
            "callbacks.redraw_features=null trainer.max_steps=4000",
            4000,
            "2,048",
        ),
        (
            "experiment=pretrained/copy_head init=RUN data.kind=bands data.num_pieces=3000 "
            "task=groove loader.scramble=0.3 trainer.max_steps=1000",
            1000,
            "2,048",
        ),
        (
            "init=RUN task=groove data.kind=bands data.num_pieces=3000 loader.batch_size=1 "
            "loader.length=2048 loader.scramble=0.3 scheduler=warmup_cooldown "
            "scheduler.cooldown=0.5 scheduler.warmup_steps=30 optimizer.lr=8e-3 "
            "optimizer.adamw_lr=1e-3 callbacks.redraw_features=null trainer.max_steps=2400",
            2400,
            "2,048",
        ),
    ],
    "bach-chorales": [
        ("experiment=pretrained/bach_chorales", 3000, "2 × 1,024"),
        (
            "experiment=pretrained/bach_chorales init=RUN tokenizer.lead_probability=0.5 "
            "model.dropout=0.25 callbacks=default scheduler=warmup_cooldown "
            "scheduler.warmup_steps=50 scheduler.cooldown=0.85 optimizer.lr=0.01 "
            "optimizer.adamw_lr=1.5e-3 trainer.max_steps=3300",
            3300,
            "2 × 1,024",
        ),
    ],
}
# Of a model's runs, from 0 on: an earlier one, and the later one's share in the average of both
# (WiSE-FT, Wortsman et al. 2022), so that what it learned costs nothing on other music.
AVERAGES = {"pop-piano-small": {3: (1, 0.6), 6: (5, 0.5), 9: (8, 0.5)}}
COMPOSED = "2,000 {kind} by this project's own seeded composer, and nothing else."
CHORALES = """\
Four-part chorales by Johann Sebastian Bach, who died in 1750, so that the notes are in the public
domain: the 334 pieces of the training split of `data=bach_chorales`, which are files of the
package music21 (`musicgen/data/corpora/bach_chorales.json` lists them). What those files say
of themselves: most print "PDF © 2003" or "2004 Margaret Greentree", a claim on the printed page,
the others nothing; none states terms, and none forbids a use. Files that reserve rights in
electronic formats are left out. The counts are in
[data/README.md](../../../data/README.md#bach-chorales). No melody of a held-out piece is in the
training split. In a fifth of the crops of run 1 what follows some bars preceded them, which taught
next to nothing; such crops are made no more, and their tokens were left out afterwards."""
DATA = {
    "pop-piano-small": COMPOSED.format(kind="pop-piano pieces")
    + "\nIn four or five of ten crops of runs 3 and 4 what follows some bars preceded them;\n"
    "such crops are made no more, and the tokens that began them were left out afterwards.\n"
    "In three of ten crops of run 7 a random map changed pitches, durations and chords; in crops\n"
    "of the last three runs passages returned at random places, too (`loader.scramble`).",
    "groove-small": COMPOSED.format(kind="grooves, then 3,000 songs of invented bands,")
    + "\nIn three of ten crops of the last two runs passages returned at random places, and\n"
    "random maps changed some (`loader.scramble`). `lag_bias` was chosen before the last run, as\n"
    "the one chosen after it, at temperature 0.8, was worse.",
    "bach-chorales": CHORALES,
}
USES = {
    "pop-piano-small": ", writes to a melody (`keep=melody`) and fills bars (`fill=9-12`)",
    "groove-small": ", plays to parts (`keep=[drums,bass]`) and fills bars (`fill=9-12`)",
    "bach-chorales": ", harmonises melodies (`keep=soprano`) and fills bars (`fill=9-12`)",
}
LIMITS = {
    "pop-piano-small": (
        "Music unlike pop songs for one piano: it has learned nothing else.",
        "What comes: kept notes and what follows a gap only choose among 16 drafts.",
    ),
    "groove-small": (
        "Bands that nobody here composed: their rhythms are kept in part. (Rhythms of unrelated "
        "bands are alike by {others:.3f}.)",
    ),
    "bach-chorales": (
        "Phrases: it knows neither text nor fermatas, and holds more chords than chorales do "
        "(`phrase_ends` in 100 beats, where continued).",
        "What comes: it does not yet use the soprano beyond this beat; what follows a gap only "
        "chooses among 16 drafts.",
        "Repeated notes, which are one long note to it, and music not in four voices.",
    ),
}
SELECTION = ("motif_return_8", "bars_recalled", "style: onset_duration", "style: time_pitch")
NAMES = {  # as on the pages of evaluations
    "nats per note": "nats a note",
    "in_key_share": "notes in key",
    "bars_recalled": "bars that return",
    "style: onset_duration": "rhythm like the original's",
    "style: time_pitch": "melody and harmony like the original's",
    "style: onset_velocity": "accents like the original's",
    "style: onset_drum": "drumming like the original's",
    "known passage, mean": "longest known passage (notes)",
    "known passage, max": "longest known passage of all",
}
BANDS = {
    "rhythm": "style: onset_duration",
    "drums": "style: onset_drum",
    "in key": "in_key_share",
    "pitches": "n_pitches_used",
    "notes in a bar": "notes_per_bar",
}
WAYS = {
    "harmonised": "Sopranos of 50 held-out chorales, harmonised",
    "continued": "The first four bars of these chorales, continued by eight",
    "val": "The validation chorales",
    "test": "The test chorales",
    "filled-val": "Two bars in the middle of the validation chorales, to be filled",
    "filled-test": "Two bars in the middle of the test chorales, to be filled",
}


def main() -> None:
    for name in RECIPES:
        write_text(PRETRAINED / name / "README.md", card(name))


def card(name: str) -> str:
    """Return the card of a model of the package."""
    model = musicgen.load(name)
    recipes = [
        f"`python train.py {x}`, {n:,} steps of {each} tokens" for x, n, each in RECIPES[name]
    ]
    for after, (number, share) in AVERAGES.get(name, {}).items():
        recipes[after] += (
            f"; {share:.0%} of its weights and {1 - share:.0%} of those after run {number + 1}"
        )
    limits = [text.format(others=others_rhythm()) for text in LIMITS[name]]
    costs = [row for row in result("training_cost")["rows"] if row["model"] == name]
    facts = CardFacts(
        name=name,
        uses=USES.get(name, ""),
        data=f"{DATA[name]}\nThe weights have the licence of the package, MIT.",
        training="<br>".join(f"{i}. {recipe}" for i, recipe in enumerate(recipes, start=1)),
        cpu_hours=sum(row["steps"] * row["CPU seconds a step"] for row in costs) / 3600,
        timed=" (from the time of 40 steps, without validations)",
        measures=[renamed(row) for row in (chorales() if "bach" in name else music(name))],
        limits=limits,
    )
    num_weights = sum(tensor.numel() for tensor in model.model.state_dict().values())
    return model_card(model.content, num_weights, facts)


def renamed(row: Row) -> Row:
    """Return a row with the name of its measure in words, and what stands beside known passages."""
    name = row["measure"]
    beside = {"beside": "held-out pieces"} if name.startswith("known passage") else {}
    return {**row, "measure": NAMES.get(name, name.replace("_", " ")), **beside}


def music(name: str) -> Iterator[Row]:
    """Yield the measures of continuations, of those chosen among candidates, and of bands."""
    of = {"composed": "16 bars after 4 of composed pieces", "POP909": "16 bars after 4 of POP909"}
    for row in continuations(name, "composed").values():
        yield {"of": of["composed"], **row}
    for measure, row in continuations(name, "composed", selected=True).items():
        if measure in SELECTION:
            yield {
                "of": f"{of['composed']}, the best of four by likelihood and notes in key",
                **row,
            }
    for row in continuations(name, "POP909").values():
        yield {"of": of["POP909"], **row}
    if name == "groove-small":
        bands = result("bands")
        summary, of = (
            bands["summary"],
            f"16 bars after 8 of {len(bands['rows'])} bands made with MMA",
        )
        for what, measure in BANDS.items():
            own, new = (summary[f"{what}, {side}"] for side in ("own", "continued"))
            figures = {"generated": new["mean"], "low": new["low"], "high": new["high"]}
            yield {"of": of, "measure": measure, **figures, "originals": own["mean"]}


def others_rhythm() -> float:
    return result("bands")["summary"]["rhythm, others"]["mean"]


def chorales() -> Iterator[Row]:
    """Yield the losses beside a trigram model's, and the part writing beside Bach's."""
    rows = result("bach_chorales")["rows"]
    trigram = {row["way"]: row["mean"] for row in rows if row.get("of") == "trigram"}
    for row in rows:
        of = {"of": WAYS[row["way"]], "beside": row.get("beside", "Bach")}
        if row.get("of") == "model":
            beside = {"beside": "a trigram model", "originals": trigram[row["way"]]}
            yield {**row, **of, **beside, "generated": row["mean"]}
        elif "originals" in row:
            yield {**row, **of}


if __name__ == "__main__":
    main()
