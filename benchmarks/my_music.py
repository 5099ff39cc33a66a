"""What `experiment=my_music` makes of folders, beside an expert's settings in the same minutes.

    python -m benchmarks.my_music FOLDER [FOLDER ...] [--minutes 5]

The expert tries nothing: all weights of the same model are taught from the first second on, for as
many steps as fit at the speed that the planned run had. Both losses are those of the same
validation pieces, the lowest of the run. Finished runs are kept.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks import measure
from musicgen.cli.plan import PROBE, TEACH
from musicgen.files import read_csv, write_text
from musicgen.text import markdown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--out", type=Path, default=Path("outputs/my_music_benchmark"))
    args = parser.parse_args()
    rows = [row(folder, args) for folder in args.folders]
    content = {
        "command": "python -m benchmarks.my_music FOLDER ...",
        "machine": measure.machine("cpu"),
        "minutes": args.minutes,
        "rows": rows,
    }
    write_text(args.out / "my_music.json", json.dumps(content, indent=1) + "\n")
    print(markdown(rows))


def row(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Plan and train, then train as an expert would; return the figures of both."""
    out = args.out / folder.name
    settings = [f"data.root={folder.resolve()}", f"minutes={args.minutes}"]
    seconds = train(out / "plan", "experiment=my_music", *settings)
    text = (out / "plan/plan.txt").read_text()
    config = yaml.safe_load((out / "plan/config.yaml").read_text())
    left = float(found(r"([\d.]+) s are left", text))
    tries = [float(loss) for loss in re.findall(r" ([\d.]+) after [\d,]+ step", text)]
    losses = validations(out / "plan")
    pace = left / max(losses)
    steps = round((left + len(tries) * PROBE * 60 * args.minutes) / pace)
    plain = found(r"same model again: .*?python \S+ (.*)", text).split()
    kept = ("data", "init", "loader", "task", "tokenizer")
    train(
        out / "expert",
        *(setting for setting in plain if setting.startswith(kept)),
        *(setting for setting in TEACH if not setting.startswith("loader")),
        *(f"trainer.max_steps={steps}", "scheduler.warmup_steps=8"),
        f"trainer.val_check_interval={max(1, steps // 12)}",
    )
    expert = validations(out / "expert")
    lowest, other = min(losses.values()), min(expert.values())
    return {
        "folder": folder.name,
        "seconds": seconds,
        "begins with": Path(config["init"] or "nothing").name,
        "tries": " ".join(f"{loss:.2f}" for loss in tries),
        "steps": max(losses),
        "loss": round(lowest, 3),
        "expert's steps": max(expert),
        "expert's loss": round(other, 3),
        "lost": round(lowest - other, 3),
    }


def train(run: Path, *settings: str) -> int:
    """Train unless that is done; return the seconds it took."""
    finished = run / "seconds.json"
    if not finished.is_file():
        start = time.monotonic()
        command = [sys.executable, "train.py", *settings, f"hydra.run.dir={run}"]
        subprocess.run(command, check=True)
        write_text(finished, json.dumps(round(time.monotonic() - start)))
    seconds: int = json.loads(finished.read_text())
    return seconds


def validations(run: Path) -> dict[int, float]:
    """Return the validation losses by step, in nats a token."""
    rows = [entry for entry in read_csv(run / "metrics.csv") if entry["val/loss"]]
    return {int(entry["step"]) + 1: float(entry["val/loss"]) for entry in rows}


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match, pattern
    return match[1]


if __name__ == "__main__":
    main()
