"""What the source of a Python program says of how its ranks are started. Pure.

Nothing is run. Names are followed through imports and aliases only, so that what a program builds at run time is not
seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_PLACE = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
_READERS = frozenset({"get", "getenv", "pop"})
_OPTIONS = frozenset({"--local_rank", "--local-rank"})
_DEEPEST = 12
"""Dots in a name."""


@dataclass(frozen=True)
class Evidence:
    """What is found in the source of one file, or of several together.

    Attributes:
        imports: Modules that are imported, with the names that are imported from them.
        names: Dotted names that are used, such as `torch.distributed.init_process_group`.
        place: Variables of a rank's place that are read from the environment; LOCAL_RANK also where it is an option.
        keywords: Arguments by name, after the last part of what is called: `Trainer.devices` of `Trainer(devices=2)`.
    """

    imports: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    place: frozenset[str] = frozenset()
    keywords: frozenset[str] = frozenset()

    def __or__(self, other: Evidence) -> Evidence:
        return Evidence(
            self.imports | other.imports,
            self.names | other.names,
            self.place | other.place,
            self.keywords | other.keywords,
        )

    def imports_any(self, *modules: str) -> bool:
        """Whether any of these modules, or something in it, is imported."""
        return any(name == module or name.startswith(f"{module}.") for name in self.imports for module in modules)

    def uses(self, package: str, *ends: str) -> bool:
        """Whether a name in a package is used that ends so, e.g. `uses("horovod", "init")`."""
        found = (name for name in self.names | self.imports if name.partition(".")[0] == package)
        return any(name.rpartition(".")[2] in ends for name in found)


def evidence_of(source: bytes) -> Evidence:
    """What one file says.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it can't be parsed.
    """
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    imports: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            imports |= {_join(module, alias.name) for alias in node.names}
            aliases |= {alias.asname or alias.name: _join(module, alias.name) for alias in node.names}
    names, place, keywords = set[str](), set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and (name := _dotted(node)):
            first, dot, rest = name.partition(".")
            names.add(aliases.get(first, first) + dot + rest)
        elif isinstance(node, ast.Call):
            called = _called(node)
            keywords |= {f"{called}.{keyword.arg}" for keyword in node.keywords if keyword.arg}
        place |= set(_read_variables(node))
    return Evidence(frozenset(imports), frozenset(names), frozenset(place), frozenset(keywords))


def _join(module: str, name: str) -> str:
    return f"{module}{name}" if module.endswith(".") else f"{module}.{name}"


def _dotted(node: ast.expr) -> str:
    """A chain of attributes as one name; empty if it begins with anything but a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _DEEPEST:
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _read_variables(node: ast.AST) -> Iterator[str]:
    """Variables of a place that are read here, as `os.environ["RANK"]`, or asked for by `"RANK" in os.environ`."""
    found: ast.expr | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        found = node.slice
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        found = node.left
    elif isinstance(node, ast.Call) and node.args:
        name = _called(node)
        if name in _READERS:
            found = node.args[0]
        elif name == "add_argument":
            texts = {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
            if texts & _OPTIONS:
                yield "LOCAL_RANK"
    if isinstance(found, ast.Constant) and found.value in _PLACE:
        yield found.value
