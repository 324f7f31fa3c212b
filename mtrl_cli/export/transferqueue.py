"""TransferQueue, the data plane of distributed trainers, as a place to send groups to.

The queue is the trainer's: it runs in the trainer's Ray cluster and must be there already.
"""

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.export.samples import Sample

_ANSWERS_WITHIN = 10.0
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
    _reach(address)
    os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")  # its warnings are about its own threads
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")  # by default it tries for 13 minutes
    try:
        import ray
        import transfer_queue
    except ImportError as error:
        needs = "python -m pip install 'mtrl-cli[transferqueue]'"
        raise UsageError(f"--format transferqueue: {error}: {needs}") from error
    try:
        with _nothing_said():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise _no_cluster(address, error) from error
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


def _reach(address: str) -> None:
    """Connect to ``address`` once; Ray itself tries for minutes.

    Raises:
        UsageError: it is no address, or nobody listens there.
    """
    if address == "auto":
        return
    place = address.removeprefix("ray://")
    if place != address and ":" not in place:
        place += ":10001"
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"--to {address}: write HOST:6379, ray://HOST:10001 or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_WITHIN).close()
    except (OSError, OverflowError) as error:  # the latter for a port beyond 65535
        raise _no_cluster(address, error) from error


@contextmanager
def _nothing_said() -> Iterator[None]:
    """Ray's native part writes to the process's standard error before any of its settings count;
    what it has to say comes back as an exception too."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _no_cluster(address: str, error: Exception) -> UsageError:
    if "AuthenticationError" in str(error.__cause__):
        return UsageError(
            f"--to {address}: the Ray cluster refuses us: set RAY_AUTH_MODE=token and"
            " RAY_AUTH_TOKEN to the cluster's"
        )
    return UsageError(f"--to {address}: no Ray cluster answers: {_line(error)}")


def _line(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return said[0] if said else type(error).__name__
