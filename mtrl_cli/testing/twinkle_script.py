"""The state behind a scripted Twinkle server: sessions, adapters, slots, snapshots, features.

Like `scripted_service` it does no arithmetic on weights. What it keeps exactly is what Twinkle
does to a client that is not careful, as captured from twinkle-kit 0.5.1: names by the second, one
snapshot an adapter, a second ``add_adapter`` that takes the first one down, labels that are not
checked, lists of the wrong length that are read all the same, 20 KB of traceback for everything.
"""

import asyncio
import inspect
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mtrl_cli.testing.scripted_service import Applied, Drift, Model, Sampler, ServiceError

Shape = Literal["real", "mock"]
TwinkleTrainer = Callable[[Mapping[str, Any]], Sequence[Sequence[float]]]
"""The body of a ``forward_backward`` → per sequence the logprob of each trained label."""

LOSSES = ("GRPOLoss", "GSPOLoss", "CISPOLoss", "SAPOLoss", "PPOLoss", "CrossEntropyLoss")
_CLASSES = {
    "set_loss": ("loss_cls", LOSSES),
    "set_optimizer": ("optimizer_cls", ("Adam", "AdamW")),
    "set_template": ("template_cls", ("Template", "Qwen3_5Template")),
    "set_processor": ("processor_cls", ("InputProcessor",)),
}
_UNTRAINED = -5.957
"""What the real backend shows at a position without a label: the logprob of token 0."""


def traceback_of(error: str) -> str:
    """20 KB that end in ``error``."""
    frame = '  File "twinkle/server/utils/task_queue/worker.py", line 214, in _execute_task\n'
    frame += "    result = await asyncio.wait_for(coro, timeout=execution_timeout)\n"
    return f"Traceback (most recent call last):\n{frame * 140}{error}\n\n"


def failure(error: str) -> ServiceError:
    return ServiceError(500, traceback_of(error))


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, from a request's headers."""

    token: str
    routing: str
    session: str

    def adapter(self, name: str) -> str:
        return f"{self.session or self.routing}-{name}"


@dataclass(slots=True)
class TwinkleScript:
    """Executes calls; see `twinkle_server.ScriptedTwinkleServer` for the options."""

    base_model: str
    sampler: Sampler
    trainer: TwinkleTrainer | None
    shape: Shape
    echo: Callable[[list[int]], list[int]]
    max_loras: int
    max_input_tokens: int
    sample_seconds: float
    training_seconds: float
    clock: Callable[[], float]
    sessions: list[str] = field(default_factory=list)
    heartbeats: Counter[str] = field(default_factory=Counter)
    models: dict[str, Model] = field(default_factory=dict)
    slots: set[str] = field(default_factory=set)
    snapshots: dict[str, int] = field(default_factory=dict)
    """Sampler URIs → the step they were saved at."""
    newest: dict[str, str] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """Checkpoint → the token that saved it."""
    applied: list[Applied] = field(default_factory=list)
    drifts: list[Drift] = field(default_factory=list)
    samples: int = 0
    base_samples: int = 0
    sampled_at_once: int = 0
    """The most sample calls of one token that were there at the same time."""
    _promises: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    _queues: dict[str, asyncio.Lock] = field(default_factory=dict)
    _present: Counter[str] = field(default_factory=Counter)

    async def close(self) -> None:
        for task in self._promises.values():
            task.cancel()
        await asyncio.gather(*self._promises.values(), return_exceptions=True)

    def expire(self, model: str) -> None:
        """What the server does to an adapter whose time is over."""
        del self.models[model]
        self.slots.discard(model)

    # --- gateway ----------------------------------------------------------------------------

    def gateway(self, call: str, body: Mapping[str, Any]) -> Any:
        if call == "get_server_capabilities":
            return {"supported_models": [{"model_name": self.base_model}]}
        if call == "capacity_info":
            used = len(self.slots)
            free = self.max_loras - used
            return {"max_loras": self.max_loras, "used_loras": used, "free_loras": free}
        if call == "create_session":
            self.sessions.append(f"session_{len(self.sessions) + 1:032x}")
            return {"session_id": self.sessions[-1]}
        if call == "session_heartbeat":
            if body["session_id"] not in self.sessions:
                raise ServiceError(404, "Unknown session")
            self.heartbeats[body["session_id"]] += 1
            return {}
        raise ServiceError(404, "Not Found")

    # --- model ------------------------------------------------------------------------------

    async def model(self, call: str, body: Mapping[str, Any], caller: Caller) -> Any:
        if not caller.routing:
            raise failure("ValueError: The model ID cannot be empty.")
        if call == "create":
            return {"status": "ok"}
        async with self._queue(f"model:{caller.session}"):
            await asyncio.sleep(self.training_seconds)
            return self._train(call, body, caller)

    def _train(self, call: str, body: Mapping[str, Any], caller: Caller) -> Any:
        if call == "add_adapter_to_model":
            return self._add(body, caller)
        name = caller.adapter(body.get("adapter_name", ""))
        model = self.models.get(name)
        if model is None:
            raise failure(f"AssertionError: Adapter {name} not found")
        if call in _CLASSES:
            key, known = _CLASSES[call]
            if body[key] not in known:
                raise failure(f"ValueError: Unknown plugin id: {body[key]}")
            settings = dict(model.spec)
            settings[call] = {k: v for k, v in body.items() if k != "adapter_name"}
            model.spec = settings
            return None
        if call == "calculate_metric":
            return self._metric(model)
        result = self._change(call, body, model, caller)
        self.applied.append(Applied(call, name, None, body))
        return result

    def _change(self, call: str, body: Mapping[str, Any], model: Model, caller: Caller) -> Any:
        if call == "forward_backward":
            return self._forward_backward(model, body)
        if call == "clip_grad_and_step":
            model.steps += 1
            model.accumulated = 0
            return None
        if call == "save":
            return self._save(model, body, caller)
        if call == "resume_from_checkpoint":
            uri = body["name"]
            if self.owners.get(uri) != caller.token or uri not in self.states:
                raise failure(f"ValueError: Checkpoint not found or access denied: {uri}")
            model.steps, model.loaded_from = self.states[uri], uri
            if self.shape == "mock":
                return {"result": {"status": "ok", "progress": {}}}
            progress = {"cur_step": model.steps, "consumed_train_samples": 0}
            return {"result": {**progress, "gradient_accumulation_steps": 1}}
        raise ServiceError(404, "Not Found")

    def _add(self, body: Mapping[str, Any], caller: Caller) -> Any:
        if not isinstance(body.get("config"), str):
            where = {"type": "string_type", "loc": ["body", "config"]}
            raise ServiceError(422, [{**where, "msg": "Input should be a valid string"}])
        name = caller.adapter(body["adapter_name"])
        if not caller.session:
            raise failure(
                f"ValueError: session_id must be provided when registering Adapter {name}"
            )
        if name in self.slots:
            self.models.pop(name, None)  # its slot stays taken
            raise failure(f"ValueError: Adapter {name} already exists")
        if len(self.slots) >= self.max_loras:
            raise failure("RuntimeError: no free LoRA slot")
        self.slots.add(name)
        self.models[name] = Model(name, {"config": body["config"]}, caller.session)
        self.applied.append(Applied("add_adapter_to_model", name, None, body))
        return {"status": "ok", "adapter_name": name}

    def _forward_backward(self, model: Model, body: Mapping[str, Any]) -> Any:
        inputs = body["inputs"]
        self._check_size(inputs)
        if not inputs:
            raise failure("RuntimeError: Batch size 0 must be >= data world size 1")
        width = max(len(feature["input_ids"]) for feature in inputs)
        for index, (feature, old) in enumerate(zip(inputs, body["old_logps"], strict=True)):
            count = sum(label != -100 for label in feature["labels"])
            if len(old) not in (1, count) and len(old) < width:
                raise failure(f"AssertionError: data/mask length mismatch at sample {index}")
        model.accumulated += len(inputs)
        trained = self.trainer(body) if self.trainer is not None else body["old_logps"]
        rows = [
            _scattered(feature["labels"], values)
            for feature, values in zip(inputs, trained, strict=True)
        ]
        if self.shape == "mock":
            records = [{"logprobs": row, "elementwise_loss": row, "loss": 0.637} for row in rows]
            return {"result": [records, 0.637]}
        padded = [row + [_UNTRAINED] * (width - len(row)) for row in rows]
        loss = -sum(_mean(value) for value in body["advantages"]) / len(inputs)
        return {"result": {"logits": None, "logps": padded, "cache": None, "loss": loss}}

    def _check_size(self, inputs: Sequence[Mapping[str, Any]]) -> None:
        tokens = sum(len(feature["input_ids"]) for feature in inputs)
        if tokens > self.max_input_tokens:
            allowed = f"maximum allowed ({self.max_input_tokens})"
            raise failure(f"RuntimeError: Input tokens ({tokens}) exceed {allowed}")

    def _metric(self, model: Model) -> Any:
        if self.shape == "mock":
            return {"result": {"loss": 0.5, "grad_norm": 0.1}}
        text = {"loss": "-0.0000", "grad_norm": "0.599972", "total time elapse": "2 seconds"}
        return {"result": {**text, "iters": model.steps, "speed": "0.00 iters/s"}}

    def _save(self, model: Model, body: Mapping[str, Any], caller: Caller) -> Any:
        if body.get("is_sampler"):
            stamp = time.strftime("%Y%m%d_%H%M%S", time.gmtime(self.clock()))
            uri = f"twinkle://{model.id}/sampler_weights/{stamp}"
            self.snapshots[uri] = model.steps
            self.newest[model.id] = uri
        else:
            name = re.sub(r"[^\w\-]", "_", body["name"])
            uri = f"twinkle://{model.id}/weights/{name}"
            self.states[uri] = model.steps
        self.owners[uri] = caller.token
        return {"twinkle_path": uri, "checkpoint_dir": f"SAVE_DIR/{uri.rpartition('//')[2]}"}

    def unload(self, body: Mapping[str, Any]) -> Any:
        request = f"req_{len(self._promises) + 1:032x}"
        self._promises[request] = asyncio.get_running_loop().create_task(self._unload(body))
        return {"request_id": request, "model_id": body["model_id"]}

    async def _unload(self, body: Mapping[str, Any]) -> Any:
        await asyncio.sleep(self.training_seconds)
        name = body["model_id"]
        if name in self.models:
            self.expire(name)
            self.applied.append(Applied("unload_model", name, None, body))
        return {"model_id": name, "type": "unload_model"}

    async def retrieve_future(self, body: Mapping[str, Any]) -> Any:
        task = self._promises.get(body["request_id"])
        if task is None or not (await asyncio.wait({task}, timeout=5))[0]:
            return {"type": "try_again", "queue_state": "active"}
        return task.result()

    # --- sampler ----------------------------------------------------------------------------

    async def sample(self, call: str, body: Mapping[str, Any], caller: Caller) -> Any:
        if call in ("create", "set_template"):
            return {"status": "ok"}
        if call != "sample":
            raise ServiceError(404, "Not Found")
        if not caller.routing:
            raise failure("ValueError: The model ID cannot be empty.")
        self._check_size(body["inputs"])
        self._present[caller.token] += 1
        self.sampled_at_once = max(self.sampled_at_once, self._present[caller.token])
        try:
            async with self._queue(f"sampler:{caller.token}"):
                await asyncio.sleep(self.sample_seconds)
                sampled = [
                    await self._sampled(item, index, body)
                    for index, item in enumerate(body["inputs"])
                ]
        finally:
            self._present[caller.token] -= 1
        return {"samples": sampled}

    async def _sampled(
        self, feature: Mapping[str, Any], index: int, body: Mapping[str, Any]
    ) -> Any:
        params, prompt = body["sampling_params"], list(feature["input_ids"])
        answer = self.sampler(prompt, index)
        if inspect.isawaitable(answer):
            answer = await answer
        self._count(body.get("adapter_uri"))
        if isinstance(answer, Mapping):
            return {"sequences": [answer], "prompt_logprobs": None, "topk_prompt_logprobs": None}
        ids = list(answer[0])[: params["max_tokens"]]
        stopped = bool(ids) and ids[-1] in (params.get("stop") or ())
        sequence = {
            "stop_reason": "stop" if stopped else "length",
            "tokens": ids,
            "logprobs": [[[i, value]] for i, value in zip(ids, answer[1], strict=False)],
            "decoded": None,
            "new_input_feature": self._feature(feature, ids),
        }
        return {"sequences": [sequence], "prompt_logprobs": None, "topk_prompt_logprobs": None}

    def _feature(self, feature: Mapping[str, Any], ids: list[int]) -> Any:
        """The context as the server continued it: labels rolled by the real one only."""
        whole = self.echo([*feature["input_ids"], *ids])
        labels = list(feature.get("labels") or [])
        if self.shape == "real":
            labels = labels[-1:] + labels[:-1] + ids
            labels = labels[1:] + labels[:1]
        else:
            labels = [*labels, *ids]
        return {"input_ids": whole, "labels": labels, "length": len(whole)}

    def _count(self, uri: str | None) -> None:
        """The weights that this sample really used."""
        self.samples += 1
        if uri is None:
            self.base_samples += 1
            return
        model = uri.removeprefix("twinkle://").partition("/")[0]
        newest = self.newest.get(model)
        if newest is not None and newest != uri:
            self.drifts.append(Drift(uri, newest))

    def _queue(self, key: str) -> asyncio.Lock:
        return self._queues.setdefault(key, asyncio.Lock())


def _scattered(labels: Sequence[int], values: Sequence[float]) -> list[float]:
    """The value of each label, at its position."""
    left = iter(values)
    return [_UNTRAINED if label == -100 else next(left) for label in labels]


def _mean(value: Any) -> float:
    return sum(value) / len(value) if isinstance(value, list) else float(value)
