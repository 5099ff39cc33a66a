"""Check this machine: python -m musicgen.doctor [--device cuda] [--json FILE]."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import torch

from musicgen.doctor.environment import describe_environment
from musicgen.doctor.parity import LINEAR_BACKENDS, Result, check_decoding, check_training
from musicgen.files import write_text


def main() -> None:
    parser = argparse.ArgumentParser(prog="musicgen-doctor", description=__doc__)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no NVIDIA GPU")
    environment = describe_environment()
    for topic, text in environment.items():
        print(f"{topic:26}{text}", flush=True)
    print(f"\nerrors on {args.device} beside fp64, relative to the largest value:")
    results: list[Result] = []
    for result in chain(check_training(args.device), check_decoding(args.device)):
        if not result.refusal or result.refusal not in {other.refusal for other in results}:
            print(describe(result), flush=True)
        results.append(result)
    print(summary(results))
    if args.json:
        rows = [result._asdict() for result in results]
        write_text(args.json, json.dumps({"environment": environment, "results": rows}, indent=1))
    sys.exit(any(result.failed for result in results))


def describe(result: Result) -> str:
    """Return one line about a check."""
    if result.refusal:
        return f"  -     {result.refusal.removesuffix(', or use backend=auto')}"
    time = "" if result.seconds is None else f"{1000 * result.seconds:9.1f} ms a step"
    state = "WRONG" if result.failed else "ok"
    return f"  {state:6}{result.name:42}{result.error:.1e}{time}"


def summary(results: Sequence[Result]) -> str:
    """Return what is wrong, and the fastest correct backend of linear attention."""
    lines = []
    if wrong := [result.name for result in results if result.failed]:
        lines.append(f"wrong on this machine, do not use: {'; '.join(wrong)}")
    else:
        lines.append("all that runs on this machine is correct")
    seconds = {
        backend: [r.seconds for r in results if r.seconds and f", {backend}, fp32" in r.name]
        for backend in LINEAR_BACKENDS
        if not any(result.failed and f", {backend}," in result.name for result in results)
    }
    if correct := {backend: sum(times) / len(times) for backend, times in seconds.items() if times}:
        fastest = min(correct, key=lambda backend: correct[backend])
        lines.append(f"fastest correct backend of linear attention: {fastest}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
