"""Adapters: few trained weights beside a model's own, which stay as they are."""

from musicgen.adapters.base import Adapter
from musicgen.adapters.lora import LoRA
from musicgen.adapters.style import Style

__all__ = ["Adapter", "LoRA", "Style"]
