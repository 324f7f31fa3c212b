"""A Qwen3 of the size of mtrl's packaged model, for SkyRL to serve; run by SkyRL's own Python.

    python benchmarks/embedded_qwen3.py TOKENIZER_JSON FOLDER

mtrl's model has 139,008 parameters: 636 tokens of width 64, tied; 2 layers of 4 heads, and an MLP
of two matrices of 4 times the width. Qwen3's MLP has three matrices: of 8/3 times the width they
are as large. Its norms have gains, 480 parameters more. Weights are random, float32.
"""

import sys

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

WIDTH = 64


def main(tokenizer_file: str, folder: str) -> None:
    tokenizer = Tokenizer.from_file(tokenizer_file)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=WIDTH,
        intermediate_size=round(WIDTH * 8 / 3),
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=WIDTH // 4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        bos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).float()
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    print(sum(parameter.numel() for parameter in model.parameters()))


if __name__ == "__main__":
    main(*sys.argv[1:])
