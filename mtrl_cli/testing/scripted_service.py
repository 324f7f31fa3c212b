"""The state behind a scripted policy server: sessions, models, snapshots, promises.

It does no arithmetic on weights. A model is a count of applied calls; a snapshot is a name; what
a policy samples is the test's own function. What it keeps exactly is what clients are tested on:
which calls took effect, how often, under which name, and which weights a sample really used.
"""

import asyncio
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Sampled = tuple[Sequence[int], Sequence[float]] | Mapping[str, Any]
Sampler = Callable[[Sequence[int], int], Sampled | Awaitable[Sampled]]
PromptLogprobs = Callable[[Sequence[int], str], Sequence[float | None]]
Trainer = Callable[[Sequence[Mapping[str, Any]]], Sequence[Sequence[float]]]
Snapshots = Literal["immutable", "newest_only", "live"]

TRAINING = (
    "create_model",
    "forward",
    "forward_backward",
    "optim_step",
    "save_weights_for_sampler",
    "save_weights",
    "load_weights",
    "unload_model",
)


class ServiceError(Exception):
    """An HTTP error reply."""

    def __init__(self, status: int, detail: Any) -> None:
        super().__init__(str(detail))
        self.status = status
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Applied:
    """A training call that took effect."""

    kind: str
    model: str | None
    seq: int | None
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Drift:
    """A sample that used other weights than those of the policy that it was asked under."""

    asked: str
    used: str


@dataclass(slots=True)
class Model:
    """A model loaded on the server."""

    id: str
    spec: Mapping[str, Any]
    session: str | None
    steps: int = 0
    accumulated: int = 0
    """Datums of backward passes that no optimizer step has consumed yet."""
    loaded_from: str | None = None
    seen: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Sequence id → digest of the body, request id."""


class ScriptedService:
    """Executes calls. Every public method is one endpoint and returns its JSON reply."""

    def __init__(
        self,
        *,
        sampler: Sampler,
        prompt_logprobs: PromptLogprobs | None,
        trainer: Trainer | None,
        models: Sequence[str],
        context: int | None,
        dedupes: bool,
        reports_weights: bool,
        sample_seconds: float,
        training_seconds: float,
        poll_seconds: float,
        snapshots: Snapshots,
    ) -> None:
        self._sampler = sampler
        self._prompt_logprobs = prompt_logprobs
        self._trainer = trainer
        self._base_models = tuple(models)
        self._context = context
        self._dedupes = dedupes
        self._reports_weights = reports_weights
        self._sample_seconds = sample_seconds
        self._training_seconds = training_seconds
        self._poll_seconds = poll_seconds
        self._keeps = snapshots
        self._promises: dict[str, asyncio.Task[Any]] = {}
        self.promised: dict[str, str] = {}
        """Request id → endpoint, of training calls."""
        self._samplers: dict[str, str] = {}
        self._sampled: dict[int, dict[tuple[int, ...], Sequence[float]]] = {}
        """Context → what was sampled after it, with its logprobs."""
        self._training_turn = asyncio.Lock()
        self._ids: Counter[str] = Counter()
        self.sessions: list[str] = []
        self.heartbeats: Counter[str] = Counter()
        self.models: dict[str, Model] = {}
        self.snapshots: dict[str, int] = {}
        self.states: dict[str, int] = {}
        self.applied: list[Applied] = []
        self.samples = 0
        self.drifts: list[Drift] = []

    async def close(self) -> None:
        tasks = list(self._promises.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Direct calls.

    def get_server_capabilities(self, _: Mapping[str, Any]) -> Any:
        return {"supported_models": [{"model_name": name} for name in self._base_models]}

    def create_session(self, _: Mapping[str, Any]) -> Any:
        session = self._new("session")
        self.sessions.append(session)
        return {"type": "create_session", "session_id": session}

    def session_heartbeat(self, body: Mapping[str, Any]) -> Any:
        session = body.get("session_id")
        if session not in self.sessions:
            raise ServiceError(404, "Session not found")
        self.heartbeats[session] += 1
        return {"type": "session_heartbeat"}

    def create_sampling_session(self, body: Mapping[str, Any]) -> Any:
        if body.get("session_id") not in self.sessions:
            raise ServiceError(404, "Session not found")
        policy = body.get("model_path")
        if policy is None:
            base = body.get("base_model")
            if base not in self._base_models:
                raise ServiceError(400, f"Unknown base model {base!r}")
            policy = f"scripted://base/{base}"
        elif policy not in self.snapshots:
            raise ServiceError(404, f"Checkpoint {policy!r} not found")
        sampler = self._new("sampling")
        self._samplers[sampler] = policy
        return {"type": "create_sampling_session", "sampling_session_id": sampler}

    # Promises.

    def asample(self, body: Mapping[str, Any]) -> Any:
        policy = self._samplers.get(body.get("sampling_session_id", ""))
        if policy is None:
            raise ServiceError(404, "Sampling session not found")
        tokens = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
        wanted = len(tokens) + body["sampling_params"]["max_tokens"]
        if self._context is not None and wanted > self._context:
            raise ServiceError(
                400,
                f"This model's maximum context length is {self._context} tokens, "
                f"but {wanted} tokens were requested",
            )
        return self._promise(self._sample(body, tokens, policy))

    async def _sample(self, body: Mapping[str, Any], tokens: list[int], policy: str) -> Any:
        if self._sample_seconds:
            await asyncio.sleep(self._sample_seconds)
        params = body["sampling_params"]
        sampled = self._sampler(tokens, params.get("seed", 0))
        if inspect.isawaitable(sampled):
            sampled = await sampled
        self.samples += 1
        weights = self._weights(policy)
        if weights != policy:
            self.drifts.append(Drift(policy, weights))
        if isinstance(sampled, Mapping):
            sequence = dict(sampled)
        else:
            ids = list(sampled[0])[: params["max_tokens"]]
            stopped = bool(ids) and ids[-1] in (params.get("stop") or ())
            sequence = {
                "stop_reason": "stop" if stopped else "length",
                "tokens": ids,
                "logprobs": list(sampled[1])[: params["max_tokens"]],
            }
        result: dict[str, Any] = {"sequences": [sequence], "type": "sample"}
        if len(sequence["tokens"]) == len(sequence.get("logprobs") or ()):
            after = self._sampled.setdefault(_key(tokens), {})
            after[tuple(sequence["tokens"])] = sequence["logprobs"]
        if body.get("prompt_logprobs"):
            result["prompt_logprobs"] = self._score(tokens, weights)
        if self._reports_weights:
            result["weights"] = weights
        return result

    def _weights(self, policy: str) -> str:
        """The weights behind a policy's name, as a sample that ends now has used them.

        Weights that changed during a sample do not come back, so the end tells it all.
        """
        model = self._model_of(policy)
        if self._keeps == "immutable" or model is None:
            return policy
        if self._keeps == "newest_only":
            return next(uri for uri in reversed(self.snapshots) if self._model_of(uri) is model)
        if self.snapshots[policy] == model.steps:
            return policy
        return f"scripted://{model.id}/live/{model.steps}"

    def _model_of(self, policy: str) -> Model | None:
        """The loaded model that a snapshot was taken of; None for a base model."""
        return self.models.get(policy.removeprefix("scripted://").partition("/")[0])

    def _score(self, tokens: Sequence[int], policy: str) -> Sequence[float | None]:
        if self._prompt_logprobs is not None:
            return self._prompt_logprobs(tokens, policy)
        scores: list[float | None] = [None] + [-0.5] * (len(tokens) - 1)
        for start in range(1, len(tokens)):
            for ids, logprobs in self._sampled.get(_key(tokens[:start]), {}).items():
                if tuple(tokens[start : start + len(ids)]) == ids:
                    scores[start : start + len(ids)] = logprobs
        return scores

    def train(
        self, kind: str, body: Mapping[str, Any], *, failure: Any = None, applied: bool = True
    ) -> Any:
        """Accept a training call; it takes effect in the order of acceptance.

        Args:
            kind: the endpoint.
            body: the request.
            failure: the error reply that its execution ends in.
            applied: it takes effect (a failing call may have, or not).
        """
        model, seq = body.get("model_id"), body.get("seq_id")
        if kind == "create_model":
            base = body.get("base_model")
            if base not in self._base_models:
                raise ServiceError(400, f"Unknown base model {base!r}")
        elif model not in self.models:
            raise ServiceError(404, f"Model {model!r} not found")
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        if self._dedupes and model is not None and seq is not None:
            known = self.models[model].seen.get(seq)
            if known is not None:
                if known[0] != digest:
                    raise ServiceError(409, "Training request sequence number was reused")
                return {"request_id": known[1]}
        if kind in ("save_weights_for_sampler", "save_weights"):
            held = self.snapshots if kind == "save_weights_for_sampler" else self.states
            if self._uri(kind, body) in held:
                raise ServiceError(
                    409, f"Checkpoint {body['path']!r} already exists for model {model!r}"
                )
        promise = self._promise(self._train(kind, body, failure, applied))
        self.promised[promise["request_id"]] = kind
        if model is not None and seq is not None:
            self.models[model].seen[seq] = (digest, promise["request_id"])
        return promise

    async def _train(self, kind: str, body: Mapping[str, Any], failure: Any, applied: bool) -> Any:
        async with self._training_turn:
            if self._training_seconds:
                await asyncio.sleep(self._training_seconds)
            result = self._apply(kind, body) if applied else None
        return result if failure is None else failure

    def _apply(self, kind: str, body: Mapping[str, Any]) -> Any:
        self.applied.append(Applied(kind, body.get("model_id"), body.get("seq_id"), body))
        if kind == "create_model":
            model = Model(self._new("model"), body, body.get("session_id"))
            self.models[model.id] = model
            reply = {"model_id": model.id, "base_model": body["base_model"]}
            return {**reply, "lora_config": body.get("lora_config"), "type": "create_model"}
        model = self.models[body["model_id"]]
        if kind in ("forward", "forward_backward"):
            return self._forward(model, kind, body[f"{kind}_input"])
        if kind == "optim_step":
            model.steps += 1
            model.accumulated = 0
            return {"metrics": {"steps": float(model.steps)}, "type": "optim_step"}
        if kind in ("save_weights_for_sampler", "save_weights"):
            held = self.snapshots if kind == "save_weights_for_sampler" else self.states
            uri = self._uri(kind, body)
            held[uri] = model.steps
            return {"path": uri, "type": kind}
        if kind == "load_weights":
            if body["path"] not in self.states:
                return {"error": f"Checkpoint {body['path']!r} not found", "category": "user"}
            model.steps = self.states[body["path"]]
            model.loaded_from = body["path"]
            return {"type": "load_weights"}
        del self.models[model.id]
        return {"model_id": model.id, "status": "unloaded", "type": "unload_model"}

    def _forward(self, model: Model, kind: str, given: Mapping[str, Any]) -> Any:
        data = given["data"]
        if kind == "forward_backward":
            model.accumulated += len(data)
        inputs = [datum["loss_fn_inputs"] for datum in data]
        if self._trainer is not None:
            rows = [list(row) for row in self._trainer(data)]
        else:
            rows = [list(row["logprobs"]["data"]) for row in inputs]
        return {
            "loss_fn_output_type": "ArrayRecord",
            "loss_fn_outputs": [
                {"logprobs": {"data": row, "dtype": "float32", "shape": [len(row)]}} for row in rows
            ],
            "metrics": {
                "loss:sum": -sum(
                    value * weight
                    for row, given in zip(rows, inputs, strict=True)
                    for value, weight in zip(row, given["advantages"]["data"], strict=False)
                )
            },
        }

    def checkpoints(self, path: str) -> Any:
        """``training_runs/MODEL/checkpoints``: what was saved of a model."""
        model = path.split("/")[1]
        begin = f"scripted://{model}/"
        saved = [uri for uri in (*self.snapshots, *self.states) if uri.startswith(begin)]
        return {
            "checkpoints": [
                {"checkpoint_id": uri.removeprefix(begin), "tinker_path": uri} for uri in saved
            ]
        }

    async def retrieve_future(self, body: Mapping[str, Any]) -> Any:
        task = self._promises.get(str(body.get("request_id")))
        if task is None:
            raise ServiceError(404, "Future not found")
        done, _ = await asyncio.wait({task}, timeout=self._poll_seconds)
        if not done:
            return {"type": "try_again", "queue_state": "active", "queue_state_reason": None}
        result = task.result()
        if "detail" in result:
            raise ServiceError(400, result["detail"])
        return result

    def _promise(self, work: Any) -> Any:
        request = str(self._ids["request"] + 1)
        self._ids["request"] += 1
        self._promises[request] = asyncio.get_running_loop().create_task(work)
        return {"request_id": request, "future_id": request, "status": "pending"}

    def _new(self, kind: str) -> str:
        self._ids[kind] += 1
        return f"{kind}_{self._ids[kind]}"

    @staticmethod
    def _uri(kind: str, body: Mapping[str, Any]) -> str:
        folder = "sampler_weights" if kind == "save_weights_for_sampler" else "weights"
        return f"scripted://{body['model_id']}/{folder}/{body['path']}"


def _key(tokens: Sequence[int]) -> int:
    return hash(tuple(tokens))
