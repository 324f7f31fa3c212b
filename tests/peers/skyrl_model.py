"""Make the model that SkyRL serves in the tests; run by SkyRL's own Python, see test_skyrl.py.

    python skyrl_model.py TOKENIZER_JSON FOLDER

A random Qwen3 of two layers over mtrl's small tokenizer. It is random in all but one thing: the
residual stream holds one constant direction, and the end marker's row of the output looks along
it, so that one token in ten or so ends the turn. Without that hardly an episode would ever end.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

WIDTH = 64
END = "<|im_end|>"
SHARE_OF_ENDS = 0.04


def main(tokenizer_file: str, folder: str) -> None:
    tokenizer = Tokenizer.from_file(tokenizer_file)
    vocabulary = tokenizer.get_vocab_size()
    end = tokenizer.token_to_id(END)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=end,
        bos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).float().eval()
    constant = torch.zeros(WIDTH)
    constant[0] = 0.05  # of a norm of about 0.16: there is room to grow
    with torch.no_grad():
        model.model.embed_tokens.weight += constant
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[end] = 0.0
        hidden = model.model(torch.randint(vocabulary, (4, 64))).last_hidden_state[..., 0]
        wanted = torch.log(torch.tensor(SHARE_OF_ENDS / (1 - SHARE_OF_ENDS) * vocabulary))
        model.lm_head.weight[end, 0] = wanted / hidden.mean()
    Path(folder).mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END
    ).save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
