"""Encodings that act on attention logits: ALiBi, Transformer-XL, SIREN."""
