"""Protobuf messages of other projects, as far as they are read here, made without a compiler.

They live in a pool of their own: a process may hold the full definitions of the same names too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Fields = Mapping[str, tuple[int, str]]
"""A message's fields: number, and type: a protobuf type, "repeated uint32", or a message."""

_KINDS = descriptor_pb2.FieldDescriptorProto
_SCALARS: Mapping[str, int] = {
    "string": _KINDS.TYPE_STRING,
    "bytes": _KINDS.TYPE_BYTES,
    "bool": _KINDS.TYPE_BOOL,
    "uint32": _KINDS.TYPE_UINT32,
}


def classes(package: str, messages: Mapping[str, Fields]) -> Mapping[str, Any]:
    """Return the class of each message, by its name."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for message, fields in messages.items():
        made = file.message_type.add(name=message)
        for field, (number, type_) in fields.items():
            _add(made, field, number, type_=type_, package=package)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{message}"))
        for message in messages
    }


def _add(message: Any, name: str, number: int, *, type_: str, package: str) -> None:
    repeated, _, bare = type_.rpartition(" ")
    field = message.field.add(name=name, number=number)
    field.label = _KINDS.LABEL_REPEATED if repeated else _KINDS.LABEL_OPTIONAL
    if bare in _SCALARS:
        field.type = _SCALARS[bare]
    else:
        field.type, field.type_name = _KINDS.TYPE_MESSAGE, f".{package}.{bare}"
