"""The card of a published model: what it is, and how to use it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from musicgen.checkpoints.content import CheckpointContent, class_name

_CARD = """\
---
library_name: musicgen-symbolic
tags: [music, symbolic-music, midi]
---
# A symbolic-music model

It continues MIDI files, with musicgen (`pip install musicgen-symbolic`):

```python
import musicgen

model = musicgen.load("FOLDER")  # or hf://USER/NAME
model.generate("song.mid", prompt_bars=4, bars=16)[0].save("continued.mid")
```

| | |
|---|---|
| weights | {num_weights:,} |
| layers × width | {layers} × {dim} |
| attention | {attention} |
| position | {position} |
| tokenizer | {tokenizer}, {num_tokens:,} tokens |
| trained on | {corpus}, in windows of {length} tokens |
| steps | {steps:,} |
"""


def model_card(content: CheckpointContent, weights: Mapping[str, Tensor]) -> str:
    """Describe a model in Markdown, with the front matter that the Hugging Face Hub reads."""
    model = content.model
    attention = class_name(model["attention"])
    if features := class_name(model["attention"].get("feature_map")):
        attention += f" with {features}"
    return _CARD.format(
        num_weights=sum(tensor.numel() for tensor in weights.values()),
        layers=model["num_layers"],
        dim=model["dim"],
        attention=attention,
        position=class_name(model["position"]),
        tokenizer=class_name(content.tokenizer),
        num_tokens=len(content.vocabulary),
        corpus=class_name(content.config.get("data")) or "a corpus",
        length=content.config["loader"]["length"],
        steps=content.steps,
    )
