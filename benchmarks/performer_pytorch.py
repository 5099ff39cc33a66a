"""Compare a training step of a 6-layer Performer with performer-pytorch's."""

from __future__ import annotations

import json

import torch

from benchmarks import measure
from benchmarks.training_step import build, step


def run(side: str, length: int, repeats: int, device: str) -> dict[str, float]:
    torch.manual_seed(0)
    tokens = torch.randint(333, (1, length), device=device)
    if side == "ours":
        model = build("absolute", 6, device)
        times = measure.seconds(lambda: step(model, tokens, 0), repeats, device)
    else:
        from performer_pytorch import PerformerLM

        theirs = PerformerLM(
            num_tokens=333,
            max_seq_len=length,
            dim=512,
            depth=6,
            heads=8,
            dim_head=64,
            nb_features=128,
            causal=True,
            ff_dropout=0.1,
            attn_dropout=0.1,
            rotary_position_emb=False,
        ).to(device)

        def their_step() -> None:
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):  # as our `step`
                logits = theirs(tokens)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
            loss.backward()

        times = measure.seconds(their_step, repeats, device)
    return {"seconds": min(times), "gigabytes": measure.peak_gigabytes(device)}


def main() -> None:
    args = measure.arguments(__doc__, length=2048, repeats=2)
    if args.side:
        print(json.dumps(run(args.side, args.length, args.repeats, args.device)))
        return
    found = measure.sides(__file__, ["ours", "performer_pytorch"], args)
    theirs, ours = found["performer_pytorch"], found["ours"]
    what = "performer-pytorch / ours"
    rows = [
        measure.row(what, theirs["seconds"], ours["seconds"], "s a step", "≥ 4"),
        measure.row(what, theirs["gigabytes"], ours["gigabytes"], "GB", "—"),
    ]
    measure.save_results(__file__, rows, args)


if __name__ == "__main__":
    main()
