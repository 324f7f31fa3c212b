"""``python -m mtrl_cli.local.warmstart --out DIR --seed N``: make tokenizer and weights anew."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported, here and below

import argparse
import sys
from pathlib import Path

from mtrl_cli.local.engine.types import Shape
from mtrl_cli.local.engine.weights import save_base
from mtrl_cli.local.warmstart import training, vocabulary
from mtrl_cli.local.warmstart.episodes import Scripter


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mtrl_cli.local.warmstart", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the two files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=training.Recipe.steps)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    tokenizer = vocabulary.train()
    vocabulary.save(tokenizer, arguments.out)
    chat, template = vocabulary.renderer(tokenizer)
    shape = Shape(vocab=len(chat))

    def report(step: int, token_loss: float, recall_loss: float) -> None:
        if step % 50 == 0 or step == arguments.steps - 1:
            sys.stdout.write(
                f"step {step}: token loss {token_loss:.4f}, recall {recall_loss:.4f}\n"
            )
            sys.stdout.flush()

    recipe = training.Recipe(steps=arguments.steps)
    weights = training.run(shape, Scripter(chat, template), recipe, arguments.seed, report)
    file = save_base(arguments.out, shape, weights)
    sys.stdout.write(f"{file}: {file.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main()
