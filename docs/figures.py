"""Compare the figures in the text of the pages with benchmarks/results/.

`benchmarks.tables` writes the tables of the pages.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.measure import RESULTS
from benchmarks.tables import result
from docs.commands import ROOT
from musicgen.files import read_csv


def disagreements() -> list[str]:
    """Return a line for each figure that its page does not print as it was measured."""
    found = []
    for page, text in figures():
        if text not in " ".join((ROOT / page).read_text("utf-8").split()):
            found.append(f"{page} has not: {text}")
    return found


def figures() -> Iterator[tuple[str, str]]:
    """Yield pages, and sentences with stored figures that they must contain."""
    cpu, cuda = sine_spe_step("training_step"), gpu_ratio("sine_spe")
    text = (
        f"takes {cpu:.2f} times as long as with an absolute encoding on a CPU, and {cuda:.2f} times"
    )
    yield "README.md", text
    yield from gpu_figures()
    yield from scale_figures()
    yield from ending_figures()
    yield from loss_figures()
    songs = {(x["part"], x["measure"]): x for x in result("songs")["rows"] if x["metre"] == "all"}
    asked = [x["generated"] for (part, _), x in songs.items() if part == "chords asked for"]
    for given, free in zip(asked[::2], asked[1::2], strict=True):
        yield "docs/arranging.md", f"{given:.0%} of the bars ({free:.0%} without `chords=`)"
    pianos = result("accompaniments")
    ways = [pianos[way] for way in ("with the figure", "without it", "originals")]
    block, doubled = ([f"{way[x]:.0%}" for way in ways] for x in ("block chords", "doubled"))
    yield (
        "docs/arranging.md",
        f"{block[0]} are block chords ({block[1]} without the figure, originals {block[2]}), and "
        f"{doubled[0]} double the tune ({doubled[1]} without, originals {doubled[2]};",
    )
    last = [row for row in result("leading_part")["rows"] if row["steps"] == 400]
    losses = [
        sum(r["val nats per note"] for r in last if r["lead_probability"] == x) / 3
        for x in (0, 0.3)
    ]
    yield "docs/arranging.md", f"worse by {places(losses[1] - losses[0])} nats a note"
    rhythm = songs["16 bars after 8", "onset-duration similarity"]
    text = "its later bars have {} and those of an unrelated piece {} "
    yield "docs/glossary.md", text.format(places(rhythm["originals"]), places(rhythm["unrelated"]))
    own, other = (f"{rhythm[side]:.2f}".lstrip("0") for side in ("originals", "unrelated"))
    text = f"similarity of {own} to their own piece, and of {other} to"
    yield "musicgen/evaluation/generated_files.py", text
    parts = "16 bars after 8", "16 bars after 8 of POP909"
    bars = [songs[part, "repeated bars"] for part in parts]
    shares = [places(row[x]) for row in bars for x in ("generated", "originals")]
    text = "{} of the bars are repeated (originals {}); for POP909 it is {} ({};"
    yield "docs/training.md", text.format(*shares)
    yield from copy_figures(shares[2:])
    model, trigram = (x for x in result("bach_chorales")["rows"] if x.get("way") == "test")
    mean, low, high = (f"{model[x]:.3f}" for x in ("mean", "low", "high"))
    text = f"{mean} nats per note ({low} to {high}), that of a trigram model {trigram['mean']:.2f}"
    yield "musicgen/pretrained/bach-chorales/README.md", text
    rows = {x["measure"]: x for x in read_csv(RESULTS / "spe2021_small/position_loss.csv")}
    for name, run in {"APE": "Sinusoidal", "sineSPE": "SineSPE", "convSPE": "ConvSPE"}.items():
        cells = [name]
        for part in ("trained", *(f"extrapolated {x}x" for x in ("1.5", "2", "4"))):
            row = rows[f"{run}, {part}"]
            cell = f"{float(row['mean']):.3f}"
            if part in ("trained", "extrapolated 4x"):
                cell += f" ± {places(float(row['seed_std']))}"
                cell += f", draws {places(float(row['draw_std']))}" if row["draw_std"] else ""
            cells.append(cell)
        cells.append(f"{float(rows[f'{run}, nats per note']['mean']):.2f}")
        yield "conf/experiment/spe2021/README.md", f"| {' | '.join(cells)} |"


def copy_figures(of_pop: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the sentences on bars that return: their shares after pop songs, and exact copies."""
    rows = {
        (x["part"], x["metre"]): x for x in result("songs")["rows"] if x["measure"] == "copied bars"
    }

    def multiple(part: str) -> float:
        row = rows[part, "all"]
        return float(row["generated"] / row["originals"])

    card, parts = (
        "musicgen/pretrained/songs-small/README.md",
        ("16 bars after 8", "12 bars after 4"),
    )
    yield (
        card,
        f"{multiple(parts[0]):.1f} times as many are exact copies "
        f"({rows[parts[0], 'all']['n']} pieces).",
    )
    yield card, f"less often than in the originals ({of_pop[0]} of {of_pop[1]})"
    for songs, text in {
        "POP909": "{:.1f} to {:.1f} times as frequent after every second song",
        "the other songs of POP909": "{:.1f} to {:.1f} times after the other songs",
    }.items():
        yield card, text.format(*sorted(multiple(f"{part} of {songs}") for part in parts))


def gpu_steps(run: int) -> dict[tuple[str, int, bool], dict[str, float]]:
    """Return the training steps of a run of `benchmarks.gpu` by encoding, batch size and mode."""
    rows = result("gpu-cuda")["runs"][run]["rows"]
    return {(row["encoding"], row["batch"], row["compiled"]): row for row in rows}


def gpu_ratio(encoding: str, run: int = 0, compiled: bool = True) -> float:
    """Return the seconds of a step of 32 sequences over those with an absolute encoding."""
    steps = gpu_steps(run)
    return steps[encoding, 32, compiled]["seconds"] / steps["absolute", 32, True]["seconds"]


def scale_figures() -> Iterator[tuple[str, str]]:
    """Yield what docs/scale.md says of a million files."""
    found = result("scale")
    yield "docs/scale.md", f"{found['files']:,} names of {found['distinct']:,} distinct files"
    for row in found["rows"]:
        if row["what"] != "imports":
            seconds, memory = row["cpu_seconds"], row["gigabytes"]
            yield "docs/scale.md", f"| {row['what']} | {seconds:.1f} s | {memory:.1f} GB |"


def gpu_figures() -> Iterator[tuple[str, str]]:
    """Yield what docs/benchmarks.md says of training on a GPU."""
    step, small = gpu_steps(0)["absolute", 32, True], gpu_steps(1)["absolute", 8, True]
    decay, eager = gpu_ratio("absolute_decay", 3), gpu_ratio("absolute", 3, compiled=False)
    yield (
        "docs/benchmarks.md",
        f"takes {step['seconds']:.3f} s: {step['tokens_per_second']:,} tokens a second, and an MFU "
        f"of {step['mfu']:.1%}. SineSPE takes {gpu_ratio('sine_spe'):.2f} times as long, convSPE "
        f"{gpu_ratio('conv_spe'):.2f} times, and learned decay {decay:.2f} times. Without "
        f"`torch.compile` a step takes {eager:.1f} times as long. At 8 sequences the MFU is "
        f"{small['mfu']:.1%}.",
    )


def sine_spe_step(name: str) -> float:
    """Return the time of a training step with sineSPE, as a multiple of an absolute encoding's."""
    rows = (row for row in result(name)["rows"] if row["what"] == "sine_spe / absolute")
    return next(row["ratio"] for row in rows if row["unit"] == "s a step")


def places(value: float) -> str:
    """Return a figure below 1 with three places: .022."""
    return f"{value:.3f}".lstrip("0")


def loss_figures() -> Iterator[tuple[str, str]]:
    """Yield what the last training of songs-small changed."""
    rows = {(row["model"], row["pieces"]): row for row in result("losses")["rows"]}
    models = "songs-small", "before 16 million tokens more"
    songs, pieces, pop = (
        [rows[model, each] for model in models] for each in ("openscore_lieder", "all", "POP909")
    )
    new, old = (f"{row['nats a note']:.3f}" for row in songs)
    text = f"{new} nats a note of {songs[0]['n']} held-out songs where the model had {old}, "
    new, old = (f"{row['nats a note']:.3f}" for row in pieces)
    text += f"{new} of all {pieces[0]['n']} pieces of this validation ({old}), "
    new, old = (f"{row['nats a note']:.2f}" for row in pop)
    text += f"and {new} of {pop[0]['n']} other songs of POP909 ({old})"
    yield "musicgen/pretrained/songs-small/README.md", text


def ending_figures() -> Iterator[tuple[str, str]]:
    """Yield the sentences on how closed pieces end."""
    ends = result("endings")
    own, originals = (ends[side + "notes in the last bar"] for side in ("", "originals: "))
    bass, original_bass = (
        ends[side + "bass of the last bar is the tonic"] for side in ("", "originals: ")
    )
    text = f"{own:.0f} notes begin in the last bar (originals {originals:.0f};"
    yield "docs/generating.md", text
    yield (
        "docs/generating.md",
        f"Of {ends['continuations']} continuations of {ends['prompts']} songs by `songs-small`, "
        f"{ends['end on the tonic chord']:.0%} end on the tonic chord (originals "
        f"{ends['originals: end on the tonic chord']:.0%}), {bass:.0%} with the tonic in the bass "
        f"({original_bass:.0%}), and in {ends['piles']} of them the last beat",
    )
    rows = result("ten_endings")["rows"]
    new, new_tonic, own, own_tonic = (
        sum(is_so(row[side]) for row in rows)
        for side in ("generated", "original")
        for is_so in (lambda end: end["dominant to tonic"], ends_on_tonic)
    )
    yield (
        "docs/benchmarks.md",
        f"{new} of {len(rows)} close with V or vii and I (originals {own}), and {new_tonic} end on "
        f"the tonic in the voice ({own_tonic});",
    )


def ends_on_tonic(end: dict[str, Any]) -> bool:
    """Return whether the last note on top is the tonic of the key, whatever its octave."""
    return bool(end["top"][-1][0].rstrip("0123456789") == end["key"].split()[0])
