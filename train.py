"""Train a model: python train.py [position=conv_spe data=midi_folder data.root=/my/midi ...]."""

from musicgen.cli.commands import train

if __name__ == "__main__":
    train()
