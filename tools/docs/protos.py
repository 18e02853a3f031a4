"""Reference pages of the protos, made from the comments in them."""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import grpc_tools
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

from tools.docs.pages import PROTOS, ROOT

PACKAGE = ".malletrain.v1."

# Numbers of the fields of FileDescriptorProto and its parts, of which paths of source locations consist.
_PACKAGE, _MESSAGE, _ENUM, _SERVICE = 2, 4, 5, 6
_FIELD = _VALUE = _METHOD = 2

_SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}


def reference_pages() -> dict[str, str]:
    """Markdown of each reference page by its path on the site."""
    files = [file for file in read_descriptors().file if f"protos/{file.name}" in PROTOS]
    home = {f".{file.package}.{kind.name}": PROTOS[f"protos/{file.name}"] for file in files for kind in _kinds(file)}
    pages = {PROTOS[f"protos/{file.name}"]: _ProtoPage(file, home).markdown() for file in files}
    return {"reference/protos/index.md": _index(files)} | pages


def read_descriptors() -> FileDescriptorSet:
    """All protos of the project, with their comments.

    Raises:
        RuntimeError: protoc refused a file.
    """
    names = [path.removeprefix("protos/") for path in PROTOS]
    includes = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        options = [f"-I{ROOT / 'protos'}", f"-I{includes}", "--include_source_info", f"--descriptor_set_out={out}"]
        if protoc.main(["protoc", *options, *names]) != 0:
            raise RuntimeError("protoc could not read protos/malletrain/v1")
        return FileDescriptorSet.FromString(out.read_bytes())


def _kinds(file: FileDescriptorProto) -> Iterator[DescriptorProto | EnumDescriptorProto]:
    yield from file.message_type
    yield from file.enum_type


def _index(files: Sequence[FileDescriptorProto]) -> str:
    rows = [
        f"| [`{Path(file.name).name}`]({Path(file.name).stem}.md) | {_Comments(file).summary()} |" for file in files
    ]
    head = ["# Protos", "", "The services speak gRPC. Their contract is `protos/malletrain/v1`.", ""]
    return "\n".join([*head, "| file | what it is |", "| --- | --- |", *rows, ""])


class _Comments:
    """Comments of a proto file by the path of what they stand before."""

    def __init__(self, file: FileDescriptorProto) -> None:
        locations = file.source_code_info.location
        self._texts = {
            tuple(at.path): " ".join(line.strip() for line in at.leading_comments.strip().splitlines())
            for at in locations
            if at.leading_comments
        }

    def at(self, *path: int) -> str:
        """The comment before the element of this path, in Markdown on one line; empty where there is none."""
        return self._texts.get(path, "").replace("<", "&lt;").replace("*", r"\*")

    def summary(self) -> str:
        """The comment at the top of the file."""
        return self.at(_PACKAGE)


class _ProtoPage:
    """The page of one proto file."""

    def __init__(self, file: FileDescriptorProto, home: Mapping[str, str]) -> None:
        self._file = file
        self._home = home
        self._page = PROTOS[f"protos/{file.name}"]
        self._comments = _Comments(file)

    def markdown(self) -> str:
        name = Path(self._file.name).name
        lines = [f"# `{name}`", "", self._comments.summary(), ""]
        for index, service in enumerate(self._file.service):
            lines += self._service(service, index)
        for index, message in enumerate(self._file.message_type):
            lines += self._message(message, index)
        for index, enum in enumerate(self._file.enum_type):
            lines += self._enum(enum, index)
        return "\n".join(lines)

    def _service(self, service: ServiceDescriptorProto, index: int) -> list[str]:
        lines = [*self._heading(service.name, self._comments.at(_SERVICE, index))]
        lines += ["| method | request | response | what it does |", "| --- | --- | --- | --- |"]
        for number, method in enumerate(service.method):
            request = ("stream of " if method.client_streaming else "") + self._link(method.input_type)
            response = ("stream of " if method.server_streaming else "") + self._link(method.output_type)
            comment = _cell(self._comments.at(_SERVICE, index, _METHOD, number))
            lines.append(f"| `{method.name}` | {request} | {response} | {comment} |")
        return [*lines, ""]

    def _message(self, message: DescriptorProto, index: int) -> list[str]:
        lines = [*self._heading(message.name, self._comments.at(_MESSAGE, index))]
        if not message.field:
            return [*lines, "No fields.", ""]
        maps = {f"{PACKAGE}{message.name}.{entry.name}": entry for entry in message.nested_type}
        lines += ["| field | type | number | meaning |", "| --- | --- | ---: | --- |"]
        for number, field in enumerate(message.field):
            comment = _cell(self._comments.at(_MESSAGE, index, _FIELD, number))
            lines.append(f"| `{field.name}` | {self._field_type(field, maps)} | {field.number} | {comment} |")
        return [*lines, ""]

    def _enum(self, enum: EnumDescriptorProto, index: int) -> list[str]:
        lines = [*self._heading(enum.name, self._comments.at(_ENUM, index))]
        lines += ["| value | number | meaning |", "| --- | ---: | --- |"]
        for number, value in enumerate(enum.value):
            comment = _cell(self._comments.at(_ENUM, index, _VALUE, number))
            lines.append(f"| `{value.name}` | {value.number} | {comment} |")
        return [*lines, ""]

    def _heading(self, name: str, comment: str) -> list[str]:
        return [f"## {name} {{ #{name} }}", "", comment, ""]

    def _field_type(self, field: FieldDescriptorProto, maps: Mapping[str, DescriptorProto]) -> str:
        if field.type_name in maps:
            key, value = maps[field.type_name].field
            return f"map of {self._single_type(key)} to {self._single_type(value)}"
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return f"repeated {self._single_type(field)}"
        return ("optional " if field.proto3_optional else "") + self._single_type(field)

    def _single_type(self, field: FieldDescriptorProto) -> str:
        return self._link(field.type_name) if field.type_name else _SCALARS[field.type]

    def _link(self, type_name: str) -> str:
        """A type's name, with a link to its description where it is one of ours."""
        name = type_name.rpartition(".")[2]
        if type_name not in self._home:
            return f"`{type_name.lstrip('.')}`"
        there = posixpath.relpath(self._home[type_name], posixpath.dirname(self._page))
        return f"[{name}]({there}#{name})"


def _cell(comment: str) -> str:
    return comment.replace("|", r"\|")
