"""Continue prompts: python generate.py prompt=FILE_OR_FOLDER [bars=16 num_samples=4 out=DIR]."""

from musicgen.cli.commands import generate

if __name__ == "__main__":
    generate()
