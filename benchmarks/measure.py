"""Measure the time and memory of the two sides of a comparison, and store the results.

Times are compared within one process, in which the sides take turns. Peak memory is measured in one
process for each side, or as the memory of a GPU's tensors.
"""

import argparse
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from musicgen.data.corpora import Corpus
from musicgen.files import write_json
from musicgen.package_data import CONF
from musicgen.report.tables import without_nan
from musicgen.tokenization.base import Tokenizer

ROOT = Path(__file__).parents[1]
RESULTS = Path(os.environ.get("BENCHMARK_RESULTS", Path(__file__).parent / "results"))
PACKAGES = (
    "torch",
    "pytorch-fast-transformers",
    "performer-pytorch",
    "flash-linear-attention",
    "triton",
)


def arguments(description: str | None, **defaults: Any) -> argparse.Namespace:
    """Parse a benchmark's command line: an option for each default, such as `--device`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--side", help="measure one side only and print it as JSON")
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser.parse_args()


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each run by round, after one warm-up of each.

    Every round times all runs in turn, so that a drift of the machine's speed affects all of them.

    Args:
        clock: of CPU time (`cpu_clock`), which other programs hardly change.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + 1):
        for name, run in runs.items():
            synchronise(device)
            start = clock()
            run()
            synchronise(device)
            if i > 0:
                times[name].append(clock() - start)
    return times


def cpu_clock(device: str) -> Callable[[], float]:
    """Return the clock of CPU time for a CPU, and of wall time for a GPU."""
    return time.process_time if device == "cpu" else time.perf_counter


def seconds(run: Callable[[], object], repeats: int, device: str = "cpu") -> list[float]:
    """Return the seconds of each repeat, after one warm-up."""
    return interleaved({"": run}, repeats, device)[""]


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_gigabytes(device: str = "cpu") -> float:
    """Return the peak memory of this process, or of its GPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    scale = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e9


def steps(
    script: str,
    builders: Mapping[str, Callable[[], Callable[[], object]]],
    args: argparse.Namespace,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the seconds of each side's step by round, and the peak gigabytes of each side.

    Args:
        builders: functions that build a side and return its step.
        clock: as in `interleaved`.
    """
    device = vars(args).get("device", "cpu")
    if args.side:
        builders[args.side]()()
        print(json.dumps({"gigabytes": peak_gigabytes(device)}))
        sys.exit()
    memory = {}
    for name, build in builders.items():
        if device == "cuda":  # which counts a process's tensors
            torch.cuda.reset_peak_memory_stats()
            build()()
            memory[name] = peak_gigabytes(device)
        else:  # before anything else: a child process inherits its parent's peak
            memory[name] = side(script, name, args)["gigabytes"]
    runs = {name: build() for name, build in builders.items()}
    return interleaved(runs, args.rounds, device, clock), memory


def sides(
    script: str, names: list[str], args: argparse.Namespace, rounds: int = 2
) -> dict[str, dict[str, float]]:
    """Measure the sides in turn, `rounds` times, and return the median of each figure.

    Taking turns spreads the drift of the machine's speed over all sides.
    """
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            results[name].append(side(script, name, args))
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in results.items()
    }


def side(script: str, name: str, args: argparse.Namespace) -> dict[str, float]:
    """Measure one side in a process of its own, so that memory peaks and caches do not mix."""
    options = [
        f"--{key.replace('_', '-')}={value}" for key, value in vars(args).items() if key != "side"
    ]
    command = [sys.executable, "-m", f"benchmarks.{Path(script).stem}", f"--side={name}", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def row(what: str, a: float, b: float, unit: str, target: str) -> dict[str, Any]:
    """Return a row of the table: two sides, their ratio and its target."""
    return {"what": what, "a": a, "b": b, "unit": unit, "ratio": a / b, "target": target}


def compare(
    what: str, a: Sequence[float], b: Sequence[float], unit: str, target: str
) -> dict[str, Any]:
    """Return a row of two interleaved sides: their medians, the median and range of the ratios.

    Ratios are formed round by round.
    """
    ratios = sorted(x / y for x, y in zip(a, b, strict=True))
    entry = row(what, statistics.median(a), statistics.median(b), unit, target)
    return entry | {
        "ratio": statistics.median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
        "rounds": len(ratios),
    }


def time_and_memory(
    what: str,
    sides: tuple[str, str],
    times: Mapping[str, Sequence[float]],
    memory: Mapping[str, float],
    targets: tuple[str, str] = ("—", "—"),
) -> list[dict[str, Any]]:
    """Return the rows of two sides' seconds a step and gigabytes."""
    a, b = sides
    return [
        compare(what, times[a], times[b], "s a step", targets[0]),
        row(what, memory[a], memory[b], "GB", targets[1]),
    ]


def save_results(script: str, rows: list[dict[str, Any]], device: str = "cpu") -> None:
    """Print the rows, and write them with the machine and the command to results/."""
    for entry in rows:
        spread = f" ({entry['lowest']:.3f} to {entry['highest']:.3f})" if "lowest" in entry else ""
        print(
            f"{entry['what']}: {entry['a']:.4g} / {entry['b']:.4g} {entry['unit']} = "
            f"{entry['ratio']:.3f}{spread} (target: {entry['target']})",
            flush=True,
        )
    write_results(script, {"rows": rows}, device)


def write_results(script: str, content: dict[str, Any], device: str = "cpu") -> None:
    """Write a script's results, with the machine and the command, to results/."""
    name = Path(script).stem + ("" if device == "cpu" else f"-{device}")
    content = {**record(script, device), **without_nan(content)}
    write_json(RESULTS / f"{name}.json", content)


def record(script: str, device: str) -> dict[str, Any]:
    """Return the command of a script, the commit of the code and the machine that it runs on."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "commit": commit.stdout.strip(),
        "command": " ".join(["python -m", f"benchmarks.{Path(script).stem}", *sys.argv[1:]]),
        "machine": machine(device),
    }


def machine(device: str) -> dict[str, str | int]:
    """Return processor, threads and package versions."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    chip = platform.processor() or platform.machine()
    if device == "cuda":
        chip = torch.cuda.get_device_name()
    return {
        "chip": chip,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **versions,
    }


def corpus(name: str, root: Path | str, **settings: Any) -> Any:
    """Return the corpus of conf/data/NAME.yaml in a folder, with the settings of its defaults."""
    own = OmegaConf.load(CONF / f"data/{name}.yaml")
    defaults = [OmegaConf.load(CONF / f"data/{each}.yaml") for each in own.pop("defaults", ())]
    return instantiate(OmegaConf.merge(*defaults, own), root=str(root), **settings)


def song_title(name: str) -> str:
    """Return composer and title of a song of OpenScore Lieder: "Hensel: Erwin"."""
    _, composer, _, title, _ = name.replace("_", " ").split("/")
    return f"{composer.split(',')[0]}: {re.sub(r'^[0-9]+ ', '', title)}"


def data_module(corpus: Corpus, tokenizer: Tokenizer, cache_dir: Path, **settings: Any) -> Any:
    """Return a data module with the settings of conf/loader/music.yaml, but for those given."""
    loader = OmegaConf.load(CONF / "loader/music.yaml")
    settings = {"seed": 0, "cache_dir": str(cache_dir)} | settings
    return instantiate(loader, corpus=corpus, tokenizer=tokenizer, **settings)
