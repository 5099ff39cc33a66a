"""Run the commands of the pages as a reader would: python -m docs.check [--steps N] [FOLDER]

Commands run in the order of the pages, in a folder with small inputs that have the names that the
pages use. A command that has passed is not run again in the same folder; changed code gets another
folder. Trainings take N steps (20; 0: all), and pass if they run for ten minutes. Figures in the
text are compared with the stored results.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from docs.commands import PAGES, ROOT, commands
from docs.figures import disagreements
from musicgen.composer import compose_corpus
from musicgen.files import write_text

SECONDS = 600  # for one command
LEFT_OUT = {  # commands that cannot run here, and what they need
    r"trainer=gpu|devices=8|num_nodes|submitit_slurm": "a GPU, or several machines",
    r"protocol=|groove2groove-data": "the files of Groove2Groove",
    r"\.musicxml": "a score",
    r"mine\.": "a module of the reader's own",
    r"experiment=race/|outputs/race|benchmarks\.": "hours, or a folder of such results",
}
PLACEHOLDERS = {  # of the pages, and what replaces them
    r"(outputs/default|generated)/DATE_TIME": r"\1/A",
    "/my/": "$HOME/",
}
PREPARED = (  # commands that make the files that the pages call the reader's own
    f"ln -sf {ROOT}/{{train,generate,evaluate}}.py {ROOT}/Makefile .",
    "for name in my prompt 'My Song (1)'; do cp midi/pop_0000.mid \"$name.mid\"; done",
    "cp songs/songs_0000.mid song.mid",
    "cp bands/band-0000/band-0000_1.mid band.mid",
    "python train.py hydra.run.dir=RUN",
    "python generate.py checkpoint=RUN midi num_prompts=3 bars=8 out=generated/A",
    "python generate.py checkpoint=bach-chorales bars=8 out=chorale",
    "cp chorale/*.mid tune.mid; cp tune.mid chorale.mid; mkdir -p outputs/default",
    "for name in RUN_{A,B,C} outputs/default/A; do cp -rT RUN $name; done",
    "for name in generated/B FOLDER{,_A,_B}; do cp -rT generated/A $name; done",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=20, help="of a training; 0: all")
    default = Path(tempfile.gettempdir()) / f"check-docs-{version()}"
    parser.add_argument("folder", type=Path, nargs="?", default=default)
    args = parser.parse_args()
    folder = args.folder.resolve()
    file = folder / "passed.json"
    passed = json.loads(file.read_text("utf-8")) if file.exists() else []
    make_inputs(folder)
    failed = 0
    for command, page in [*((x, "before") for x in PREPARED), *commands(PAGES)]:
        if reason := next((y for x, y in LEFT_OUT.items() if re.search(x, command)), None):
            print(f"     —  {page}: {command}: left out: {reason}", flush=True)
            continue
        text = shortened(command, args.steps)
        if text in passed:
            continue
        start = time.monotonic()
        error, shown = error_of(text, folder), " ".join(text.split())[:150]
        print(f"{time.monotonic() - start:4.0f} s  {page}: {shown}: {error or 'ok'}", flush=True)
        failed += error is not None
        passed += [] if error else [text]
        write_text(file, json.dumps(passed, indent=1))
    wrong = disagreements()
    print(
        *wrong,
        f"{failed} commands failed, {len(wrong)} figures disagree; {folder} has the rest",
        sep="\n",
    )
    return int(bool(failed or wrong))


def make_inputs(folder: Path) -> None:
    """Write pieces, a song, bands and chorales."""
    compose_corpus(folder / "midi", kind="pop", num_pieces=24, seed=7)
    compose_corpus(folder / "songs", kind="songs", num_pieces=1, seed=7)
    compose_corpus(folder / "bands", kind="bands", num_pieces=12, seed=7)
    frames = [[72 + i % 5, 67, 60 + i % 3, 48] for i in range(96)]
    jsb = {split: [frames[i:] for i in range(8)] for split in ("train", "valid", "test")}
    write_text(folder / "Jsb16thSeparated.json", json.dumps(jsb))


def shortened(command: str, steps: int) -> str:
    """Return a command without placeholders, and with few steps if it is a training."""
    for placeholder, replacement in PLACEHOLDERS.items():
        command = re.sub(placeholder, replacement, command)
    command = command.replace("make ", "make -o .venv/.installed RUN=python ", 1)
    if "train.py" in command and "--help" not in command and steps:
        command += f" trainer.max_steps={steps * (1 + ('resume=' in command))} minutes=null"
    return command


def version() -> str:
    """Return a digest of the code that the commands run."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "musicgen").rglob("*.py")) + sorted((ROOT / "conf").rglob("*.yaml")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def error_of(command: str, folder: Path) -> str | None:
    """Run a command; return the last line of its error, None if it has none."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(ROOT), "PATH": path}
    shell = ["timeout", f"{SECONDS}", "bash", "-c", command]
    done = subprocess.run(shell, cwd=folder, env=environment, input=b"", capture_output=True)
    if done.returncode == 124:  # of `timeout`
        return None if "train.py" in command else f"no end within {SECONDS} s"
    lines = (done.stdout + done.stderr).decode(errors="replace").strip().split("\n")
    return lines[-1] or "no output" if done.returncode else None


if __name__ == "__main__":
    sys.exit(main())
