"""Run by the interpreter that has twinkle-kit: its transformers backend, on a CPU, in one process.

Reads requests as mtrl sent them and hands each to the model as the server's handler would. Beside
it stands what mtrl meant: every sequence by itself, without padding or labels, the sum over its
sampled tokens of -r A (bounded for PPO), and its gradient by torch.
"""

import json
import sys
from typing import Any

import torch
from peft import LoraConfig
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from twinkle.data_format import InputFeature
from twinkle.model import MultiLoraTransformersModel
from twinkle.utils.platforms.gpu import GPU

NAME = "session-mtrl1"


# The backend knows GPUs, NPUs and MPS; everything below runs on the CPU all the same.
GPU.get_local_device = staticmethod(lambda idx, **_: "cpu")


def tiny_model(folder: str, tokenizer: str) -> None:
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=256,
    )  # fmt: skip
    Qwen3ForCausalLM(shape).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_file=tokenizer).save_pretrained(folder)


class Backend:
    def __init__(self, folder: str) -> None:
        self.model = MultiLoraTransformersModel(model_id=folder, mixed_precision="no")
        self.folder = folder

    def handle(self, call: str, body: dict[str, Any]) -> Any:
        extra = {key: value for key, value in body.items() if key != "adapter_name"}
        if call == "add_adapter_to_model":
            config = json.loads(extra["config"])
            assert config.pop("_TWINKLE_TYPE_") == "LoraConfig"
            return self.model.add_adapter_to_model(NAME, LoraConfig(**config))
        if call == "set_template":
            extra["model_id"] = self.folder
        if call == "forward_backward":
            inputs = [InputFeature(**item) for item in extra.pop("inputs")]
            for feature in inputs:
                for key, value in feature.items():
                    if isinstance(value, list):
                        feature[key] = torch.tensor(value)
            return self.model.forward_backward(inputs=inputs, adapter_name=NAME, **extra)
        if call in ("set_loss", "set_optimizer", "set_template", "set_processor"):
            named = extra.pop(
                {"set_loss": "loss_cls", "set_optimizer": "optimizer_cls",
                 "set_template": "template_cls", "set_processor": "processor_cls"}[call]
            )  # fmt: skip
            return getattr(self.model, call)(named, adapter_name=NAME, **extra)
        return getattr(self.model, call)(adapter_name=NAME, **extra)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        found: dict[str, torch.nn.Parameter] = self.model._get_trainable_parameters(NAME)
        return found

    def gradients(self) -> torch.Tensor:
        rows = [
            torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten().clone()
            for p in self.parameters().values()
        ]
        return torch.cat(rows)

    def meant(self, data: list[dict[str, Any]], temperature: float, loss: str) -> dict[str, Any]:
        """The sum, its gradient and the logprobs, one sequence after the other."""
        for parameter in self.parameters().values():
            parameter.grad = None
        total, logprobs = torch.zeros(()), []
        with self.model.multi_adapter.adapter(NAME):
            for datum in data:
                tokens = torch.tensor([datum["tokens"]])
                logits = self.model.model(input_ids=tokens).logits[0].float() / temperature
                rows = torch.log_softmax(logits, -1)
                new = rows.gather(1, torch.tensor(datum["targets"])[:, None])[:, 0]
                weight = torch.tensor(datum["advantages"])
                ratio = torch.exp(new - torch.tensor(datum["logprobs"]))
                bounded = torch.clamp(ratio, 0.8, 1.2) if loss == "ppo" else ratio
                live = weight != 0
                total = total - torch.minimum(ratio * weight, bounded * weight)[live].sum()
                logprobs.append(new.tolist())
        total.backward()
        return {"loss": total.item(), "gradient": self.gradients(), "logprobs": logprobs}


def main() -> None:
    told = json.load(sys.stdin)
    tiny_model(told["folder"], told["tokenizer"])
    backend = Backend(told["folder"])
    batches, found = iter(told["batches"]), []
    meant: dict[str, Any] = {}
    for call, body in told["requests"]:
        if call == "forward_backward":
            batch = next(batches)
            meant = backend.meant(batch["data"], batch["temperature"], batch["loss"])
            for parameter in backend.parameters().values():
                parameter.grad = None
        answer = backend.handle(call, body)
        if call == "forward_backward":
            gap = (backend.gradients() - meant["gradient"]).abs().max().item()
            found.append(
                {
                    "loss": answer["loss"], "meant": meant["loss"],
                    "logps": answer["logps"].tolist(), "logprobs": meant["logprobs"],
                    "gap": gap, "size": meant["gradient"].abs().max().item(),
                }
            )  # fmt: skip
        if call == "clip_grad_and_step":
            optimizer = backend.model.optimizer_group[NAME].optimizer
            found[-1]["groups"] = [
                [group["lr"], list(group["betas"]), group["eps"], group["weight_decay"]]
                for group in optimizer.param_groups
                if group["params"]
            ]
            found[-1]["optimizer"] = type(optimizer.optimizer).__name__  # accelerate wraps it
    json.dump(found, sys.stdout)


main()
