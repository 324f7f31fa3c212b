"""The protobuf messages of the Tinker API, as far as mtrl reads or writes them.

The schema is the table below; the message classes are made from it at run time, in a descriptor
pool of their own, so that another library's copy of the same messages can live in the process.
Names and numbers are those of the API's own descriptor (package ``tinker_public``).

Every field has presence, whatever its type: what a peer left out can be told from a zero. Parts
that mtrl refuses (sparse tensors, images) are opaque bytes, known only to be there.

Arrays travel packed, little-endian: token ids as int32, logprobs as float32, a `Tensor` by its
``dtype``. A `BatchedTensor` is the rows of several data one after the other, with n + 1 int64
**byte** offsets.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import Message

CONTENT_TYPE = "application/x-protobuf"

STOP, LENGTH = 0, 1
"""`SampledSequence.stop_reason`."""

FLOAT32, INT64, INT32 = 1, 2, 3
"""``dtype`` of a tensor, by numpy's names in `DTYPES`."""

DTYPES: Mapping[int, str] = {FLOAT32: "<f4", INT64: "<i8", INT32: "<i4"}

_PACKAGE = "mtrl_tinker"

# message → (number, name, type). `*` marks a repeated field, `string→T` a map.
_MESSAGES: Mapping[str, Sequence[tuple[int, str, str]]] = {
    "SampleResponse": (
        (1, "sequences", "SampledSequence*"),
        (2, "prompt_logprobs", "bytes"),
        # mtrl's own, beyond the numbers in use: the URI of the weights that sampled.
        (5001, "weights", "string"),
    ),
    "SampledSequence": (
        (1, "stop_reason", "int32"),
        (2, "tokens", "bytes"),
        (3, "logprobs", "bytes"),
    ),
    "Tensor": (
        (1, "dense", "bytes"),
        (2, "sparse_csr", "bytes"),
        (3, "dtype", "int32"),
        (4, "shape", "int64*"),
    ),
    "BatchedTensor": (
        (1, "data", "bytes"),
        (2, "offsets", "bytes"),
        (3, "dtype", "int32"),
        (4, "trailing_shape", "int64*"),
    ),
    "ArrayRecord": (
        (1, "type_tag", "string"),
        (2, "fields", "string→BatchedTensor"),
        (3, "num_datums", "int64"),
    ),
    "ForwardBackwardOutput": (
        (1, "loss_fn_output_type", "string"),
        (2, "loss_fn_outputs", "ArrayRecord*"),
        (3, "metrics", "string→double"),
    ),
    "ForwardBackwardRequest": (
        (1, "model_id", "string"),
        (2, "seq_id", "int32"),
        (3, "data", "Datum*"),
        (4, "loss_fn", "string"),
        (5, "loss_fn_config", "string→double"),
        (6, "forward_only", "bool"),
        (7, "loss_fn_config_v2", "string→LossConfigValue"),
    ),
    "LossConfigValue": ((1, "number", "double"), (2, "text", "string")),
    "Datum": (
        (1, "model_input", "Chunk*"),
        (2, "loss_fn_inputs", "string→Tensor"),
    ),
    "Chunk": (
        (1, "encoded_text", "EncodedTextChunk"),
        (2, "image", "bytes"),
        (3, "dmel", "bytes"),
    ),
    "EncodedTextChunk": ((1, "tokens", "bytes"),),
}


def new(name: str) -> Any:
    """An empty message. Its attributes are the fields of the table above."""
    return _classes()[name]()


def read(name: str, body: bytes) -> Any:
    """The message that ``body`` holds.

    Raises:
        ValueError: it holds none.
    """
    from google.protobuf.message import DecodeError

    message = new(name)
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise ValueError(f"not a protobuf {name}") from None
    return message


@cache
def _classes() -> "Mapping[str, type[Message]]":
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    pool.AddSerializedFile(_file().SerializeToString())
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def _file() -> "FileDescriptorProto":
    from google.protobuf.descriptor_pb2 import EDITION_2023, FileDescriptorProto

    # In this edition every field has presence, numbers are packed, and a string that is no UTF-8 is
    # found when a message is parsed (in proto2 by whoever reads it).
    file = FileDescriptorProto(
        name="mtrl/tinker.proto", package=_PACKAGE, syntax="editions", edition=EDITION_2023
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            if kind.startswith("string→"):
                entry = message.nested_type.add(name=_entry_name(field))
                entry.options.map_entry = True
                _add(entry, 1, "key", "string")
                _add(entry, 2, "value", kind.removeprefix("string→"))
                kind = f"{name}.{entry.name}*"
            _add(message, number, field, kind)
    return file


def _add(message: Any, number: int, name: str, kind: str) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    repeated = kind.endswith("*")
    kind = kind.removesuffix("*")
    field = message.field.add(
        name=name,
        number=number,
        label=Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL,
    )
    if kind[0].isupper():
        field.type, field.type_name = Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        field.type = Field.Type.Value(f"TYPE_{kind.upper()}")


def _entry_name(field: str) -> str:
    """What protobuf insists on: the field's name in camel case and ``Entry``."""
    return "".join(part.capitalize() for part in field.split("_")) + "Entry"
