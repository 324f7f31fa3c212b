"""TransferQueue, the data plane of distributed trainers, as a place to send groups to.

The queue is the trainer's: it runs in the trainer's Ray cluster and must be there already.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.export.samples import Sample

_CONTROLLER, _NAMESPACE = "TransferQueueController", "transfer_queue"


class TransferQueue:
    """The queue of the Ray cluster that this process is connected to; see `connected`."""

    def __init__(self, package: Any) -> None:
        self._tq = package

    def tags(self, partition: str) -> Mapping[str, Mapping[str, Any]]:
        found: Mapping[str, Mapping[str, Any]] = self._tq.kv_list(partition).get(partition, {})
        return found

    def put(self, partition: str, samples: Sequence[Sample]) -> None:
        import torch
        from tensordict import TensorDict

        def column(name: str) -> Any:
            values = [torch.from_numpy(sample.fields[name].copy()) for sample in samples]
            return torch.nested.as_nested_tensor(values, layout=torch.jagged)

        self._tq.kv_batch_put(
            keys=[sample.key for sample in samples],
            partition_id=partition,
            fields=TensorDict(
                {name: column(name) for name in samples[0].fields}, batch_size=len(samples)
            ),
            tags=[dict(sample.tag) for sample in samples],
        )

    def mark(self, partition: str, key: str, tag: Mapping[str, Any]) -> None:
        self._tq.kv_put(key=key, partition_id=partition, tag=dict(tag))


@contextmanager
def connected(address: str) -> Iterator[TransferQueue]:
    """The queue in the Ray cluster at ``address``; the connection ends with the block.

    Raises:
        UsageError: the package is missing, or there is no cluster or no queue.
        MtrlError: the queue failed in the block.
    """
    os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")  # its warnings are about its own threads
    try:
        import ray
        import transfer_queue
    except ImportError as error:
        needs = "pip install 'mtrl-cli[transferqueue]'"
        raise UsageError(f"--format transferqueue: {error}: {needs}") from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise UsageError(f"--to {address}: no Ray cluster answers: {_line(error)}") from error
    try:
        try:
            ray.get_actor(_CONTROLLER, namespace=_NAMESPACE)
        except ValueError as error:
            raise UsageError(
                f"--to {address}: no TransferQueue runs there; the trainer must have called "
                "transfer_queue.init()"
            ) from error
        transfer_queue.init()
        try:
            yield TransferQueue(transfer_queue)
        except MtrlError:
            raise
        except Exception as error:
            again = "the same command sends the rest, and nothing twice"
            raise MtrlError(f"TransferQueue at {address}: {_line(error)}; {again}") from error
        finally:
            # transfer_queue.close() would end the trainer's queue.
            transfer_queue.get_client().close()
    finally:
        ray.shutdown()


def _line(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return said[0] if said else type(error).__name__
