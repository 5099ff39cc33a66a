"""The command musicgen-prepare, which has no script."""

from musicgen.cli.commands import prepare

if __name__ == "__main__":
    prepare()
