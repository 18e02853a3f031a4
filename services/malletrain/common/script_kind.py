"""Which kind of program a job's command is, as far as its files tell: how its ranks are started, and by whom.

Files are read by a function that is passed in, never run, and only so many of them. Names are followed through imports
and aliases only, so that what a program builds at run time is not seen. What can't be told is `UNKNOWN`, or a single
process where a program shows no sign of being more.
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path, PurePath

from malletrain.common.python_command import PythonCommand, is_interpreter, parse_python_command

_PLACE = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
_READERS = frozenset({"get", "getenv", "pop"})
_OPTIONS = frozenset({"--local_rank", "--local-rank"})
_DEEPEST = 12
"""How many dots a name may have; a longer chain of attributes is none that we look for."""


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
        names_of_package = (name for name in self.names | self.imports if name.partition(".")[0] == package)
        return any(name.rpartition(".")[2] in ends for name in names_of_package)


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
        if isinstance(node, (ast.Attribute, ast.Name)) and (name := _dotted_name(node)):
            first, dot, rest = name.partition(".")
            names.add(aliases.get(first, first) + dot + rest)
        elif isinstance(node, ast.Call):
            called = _called_name(node)
            keywords |= {f"{called}.{keyword.arg}" for keyword in node.keywords if keyword.arg}
        place |= set(_read_variables(node))
    return Evidence(frozenset(imports), frozenset(names), frozenset(place), frozenset(keywords))


def _join(module: str, name: str) -> str:
    return f"{module}{name}" if module.endswith(".") else f"{module}.{name}"


def _dotted_name(node: ast.expr) -> str:
    """A chain of attributes as one name; empty if it begins with anything but a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _DEEPEST:
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _called_name(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _read_variables(node: ast.AST) -> Iterator[str]:
    """Variables of a place that are read here, as `os.environ["RANK"]`, or asked for by `"RANK" in os.environ`."""
    key: ast.expr | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        key = node.slice
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        key = node.left
    elif isinstance(node, ast.Call) and node.args:
        name = _called_name(node)
        if name in _READERS:
            key = node.args[0]
        elif name == "add_argument":
            texts = {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
            if texts & _OPTIONS:
                yield "LOCAL_RANK"
    if isinstance(key, ast.Constant) and key.value in _PLACE:
        yield key.value


ReadFile = Callable[[Path], bytes | None]
"""Reads a file; None if there is none, it can't be read, or it is too long."""


@dataclass(frozen=True)
class ProgramFiles:
    """What is seen of the file system.

    Attributes:
        read: Reads a file.
        find: Where a program without a folder in its name is, as PATH says.
        packages: Folders of the packages that are installed for an interpreter, by its path.
        own: Folders with more modules of the user's own, as PYTHONPATH says.
    """

    read: ReadFile
    find: Callable[[str], Path | None] = lambda _: None
    packages: Callable[[Path], Sequence[Path]] = lambda _: ()
    own: Sequence[Path] = ()

    def interpreter_packages(self, program: str, directory: Path) -> Sequence[Path]:
        """Folders of the packages of an interpreter that a command names."""
        path = Path(directory, program) if PurePath(program).name != program else self.find(program)
        return () if path is None else self.packages(path)


_MAX_FILES = 64
_MAX_WORDS = 10_000
_LINES_OF_A_STARTER = 12
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_LAUNCHERS = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), "torchrun"),
    **dict.fromkeys(("accelerate", "accelerate.commands.launch"), "accelerate"),
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch"), "deepspeed"),
    **dict.fromkeys(("horovodrun", "horovod.runner"), "horovodrun"),
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun"), "mpirun or srun"),
    **dict.fromkeys(("composer", "fabric", "tune", "ray", "pdsh"), "a launcher"),
}
_ENDS_OF_COMMANDS = re.compile(r"[;&|\n(){}`]+")
_ANY_BACKEND = "malletrain.client.elastic"
_HOROVOD_HELPER = "malletrain.client.horovod"
_TORCHRUN_HELPERS = tuple(
    f"malletrain.client.{name}" for name in ("distributed", "fsdp", "lightning", "transformers", "accelerate")
)
_INITIALISERS = ("init_process_group", "init_device_mesh", "init_distributed", "init_distributed_device")
_TRAINERS = (
    ("accelerate", ("Accelerator",)),
    ("transformers", ("Trainer", "Seq2SeqTrainer")),
    ("trl", ("SFTTrainer", "DPOTrainer", "GRPOTrainer", "RewardTrainer")),
    ("deepspeed", ("initialize", "init_distributed")),
    ("composer", ("Trainer",)),
)
"""Classes and functions of libraries that find their ranks in what torchrun sets."""
_LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")


class ScriptKind(Enum):
    """How the ranks of a program are started."""

    ANY_BACKEND = auto()
    """With `malletrain.client.elastic`: by Horovod or torchrun, whichever the job has."""
    ELASTIC_HOROVOD = auto()
    """It stays while others join and leave."""
    HOROVOD = auto()
    """Horovod without its elastic part: `hvd.init()` once, and the same ranks to the end."""
    TORCHRUN = auto()
    """One process for each rank, which finds its place in RANK, WORLD_SIZE and so on."""
    OWN_RANKS = auto()
    """It starts its ranks itself, as by `torch.multiprocessing.spawn`, or has their number by its own options."""
    SINGLE = auto()
    """One process: it shows no sign of others."""
    LAUNCHER = auto()
    """`torchrun`, `accelerate launch`, `mpirun` and so on, which start the ranks."""
    WRAPPER = auto()
    """A shell, or another program that starts what is not known."""
    UNKNOWN = auto()
    """A Python program that can't be read."""


@dataclass(frozen=True)
class Script:
    """What is known of a command.

    Attributes:
        name: What to call it: the script, module or program.
        launcher: What starts the ranks, if it is a launcher.
        helped: Whether it uses one of `malletrain.client`'s helpers, so that it goes on where it was.
    """

    kind: ScriptKind
    name: str
    launcher: str = ""
    helped: bool = False


def recognise(command: Sequence[str], directory: Path, files: ProgramFiles) -> Script:
    """Which kind of program a command is."""
    words = [*command]
    if not words:
        return Script(ScriptKind.WRAPPER, "")
    python = parse_python_command(words)
    if python is not None:
        return _of_python(python, directory, files)
    name = PurePath(words[0]).name
    if is_interpreter(words[0]):
        code = words[words.index("-c") + 1 : words.index("-c") + 2] if "-c" in words else []
        return _of_sources("python -c", [_evidence(code[0].encode())]) if code else Script(ScriptKind.UNKNOWN, name)
    if name in _LAUNCHERS:
        return Script(ScriptKind.LAUNCHER, name, _LAUNCHERS[name])
    if name in _SHELLS:
        return _of_shell(words, directory, files)
    if inner := _inner(words):
        return _within(name, [recognise(inner, directory, files)])
    path = Path(directory, words[0]) if PurePath(words[0]).name != words[0] else files.find(words[0])
    return _of_program(name, path, words, directory, files)


def _of_python(python: PythonCommand, directory: Path, files: ProgramFiles) -> Script:
    if python.kind == "script":
        path, folder = Path(directory, python.target), Path(directory, python.target).parent
        return _of_sources(path.name, _sources(path, (folder, *files.own), files.read))
    if python.target in _LAUNCHERS:
        return Script(ScriptKind.LAUNCHER, python.target, _LAUNCHERS[python.target])
    own = (directory, *files.own)
    if (main_file := _module(python.target, own, files.read)) is not None:
        return _of_sources(python.target, _sources(main_file, own, files.read))
    folders = files.interpreter_packages(python.interpreter[0], directory)
    main_file = _module(python.target, folders, files.read)
    package = frozenset({python.target.partition(".")[0]})
    return _of_sources(python.target, () if main_file is None else _sources(main_file, folders, files.read, package))


def _module(name: str, folders: Iterable[Path], read: ReadFile) -> Path | None:
    """The file that `python -m` runs."""
    parts = name.split(".")
    for folder in folders:
        for place in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__main__.py")):
            if read(place) is not None:
                return place
    return None


def _of_program(name: str, path: Path | None, words: Sequence[str], directory: Path, files: ProgramFiles) -> Script:
    """A program that is a script of its own: its first line says of what."""
    source = files.read(path) if path is not None else None
    if path is None or source is None or not source.startswith(b"#!"):
        return Script(ScriptKind.WRAPPER, name)
    line = source.partition(b"\n")[0].decode(errors="replace")[2:].split()
    programs = [PurePath(word).name for word in line]
    interpreter = next(filter(is_interpreter, line), None)
    if interpreter is not None:
        own = (path.parent, *files.own)
        installed = _read_installed(source, files.interpreter_packages(interpreter, directory), files.read)
        return _of_sources(name, [*_sources(path, own, files.read), *installed])
    if _SHELLS & set(programs):
        return _of_shell([programs[-1], str(path), *words[1:]], directory, files)
    return Script(ScriptKind.WRAPPER, name)


def _read_installed(source: bytes, folders: Sequence[Path], read: ReadFile) -> Iterator[Evidence | None]:
    """What the installed package says that a program of a few lines starts, as pip makes them for a package."""
    evidence = _evidence(source)
    short = source.count(b"\n") <= _LINES_OF_A_STARTER
    names = [name for name in evidence.imports if not name.startswith(".")] if evidence and short else []
    package = frozenset(name.partition(".")[0] for name in names) - sys.stdlib_module_names
    for name in names:
        if name.partition(".")[0] in package:
            for path in _places(name, Path(), folders):
                yield from _sources(path, folders, read, package)


# -- shells ----------------------------------------------------------------------------------------------------------


def _of_shell(words: Sequence[str], directory: Path, files: ProgramFiles) -> Script:
    """What the commands of a shell start, if they start one program that is known."""
    index = next((index for index, word in enumerate(words[1:], 1) if not word.startswith(("-", "+"))), len(words))
    if index == len(words):
        return Script(ScriptKind.WRAPPER, words[0])
    inline = any(word.startswith("-") and not word.startswith("--") and "c" in word for word in words[1:index])
    path = Path(directory, words[index])
    text = words[index].encode() if inline else files.read(path)
    name = f"{PurePath(words[0]).name} -c" if inline else path.name
    folders = [directory] if inline else [directory, path.parent]
    scripts = []
    for command in _commands(text or b""):
        program = PurePath(command[0]).name
        if program in _LAUNCHERS:
            return Script(ScriptKind.LAUNCHER, name, _LAUNCHERS[program])
        inner = _inner(command)
        if inner and (not is_interpreter(inner[0]) or parse_python_command(inner)):  # not `python --version`
            tries = [recognise(inner, folder, files) for folder in folders]
            scripts.append(next((script for script in tries if script.kind is not ScriptKind.UNKNOWN), tries[0]))
    return _within(name, scripts)


def _commands(text: bytes) -> Iterator[list[str]]:
    """The simple commands of a shell's text, as far as they are plain words."""
    count = 0
    joined = text.decode(errors="replace").replace("\\\n", " ")
    for line in _ENDS_OF_COMMANDS.split(joined):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quotation that goes on after the end of this command
            words = line.split()
        while words and (words[0] in ("exec", "then", "do", "else", "if", "time", "!") or "=" in words[0]):
            words = words[1:]
        count += len(words)
        if count > _MAX_WORDS:
            return
        if words:
            yield words


def _inner(words: Sequence[str]) -> Sequence[str]:
    """The command of Python, or of a launcher, in a command of another program, as in `nice -n 5 python train.py`."""
    for index, word in enumerate(words):
        name = PurePath(word.lstrip("$").strip("{}")).name
        if is_interpreter(name.lower()):
            return (word if is_interpreter(word) else "python", *words[index + 1 :])
        if index and name in _LAUNCHERS and not word.startswith("-"):
            return words[index:]
    return ()


def _within(name: str, scripts: Sequence[Script]) -> Script:
    """A program that starts others: it is run as the only one that it starts, if that is one of many ranks."""
    kinds = {script.kind for script in scripts} - {ScriptKind.WRAPPER, ScriptKind.UNKNOWN}
    several = {ScriptKind.ANY_BACKEND, ScriptKind.ELASTIC_HOROVOD, ScriptKind.HOROVOD, ScriptKind.TORCHRUN}
    if len(scripts) == 1 and kinds and kinds <= several:
        return replace(scripts[0], name=name)
    launched = next((script for script in scripts if script.kind is ScriptKind.LAUNCHER), None)
    return replace(launched, name=name) if launched else Script(ScriptKind.WRAPPER, name)


# -- sources ---------------------------------------------------------------------------------------------------------


def _sources(
    path: Path, folders: Sequence[Path], read: ReadFile, packages: frozenset[str] | None = None
) -> Iterator[Evidence | None]:
    """What a program's file says, then those that it imports; None of one that is unclear.

    Args:
        folders: Where the modules that it imports may be.
        packages: Imports of other packages are not followed; None: all are.
    """
    seen: set[Path] = set()
    waiting = deque([path])
    while waiting and len(seen) < _MAX_FILES:
        file = waiting.popleft()
        if file in seen or (source := read(file)) is None:
            continue
        seen.add(file)
        evidence = _evidence(source)
        yield evidence
        for name in evidence.imports if evidence else ():
            if packages is None or name.startswith(".") or name.partition(".")[0] in packages:
                waiting.extend(_places(name, file.parent, folders))


def _evidence(source: bytes) -> Evidence | None:
    try:
        return evidence_of(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _places(name: str, here: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """Files that may be a module of the program's own; the name's last part may also be a name within the module."""
    level = len(name) - len(name.lstrip("."))
    for _ in range(level - 1):
        here = here.parent
    parts = name.lstrip(".").split(".")
    for folder in (here,) if level else folders:
        for length in (len(parts), len(parts) - 1):
            if length:
                place = folder.joinpath(*parts[:length])
                yield place.with_name(f"{place.name}.py")
                yield place / "__init__.py"


def _of_sources(name: str, sources: Iterable[Evidence | None]) -> Script:
    """The kind of a program by its files, its own first."""
    evidence = [*sources]
    if not evidence or evidence[0] is None:
        return Script(ScriptKind.UNKNOWN, name)
    whole = functools.reduce(Evidence.__or__, filter(None, evidence))
    return Script(kind_of(whole), name, helped=whole.imports_any(_ANY_BACKEND, _HOROVOD_HELPER, *_TORCHRUN_HELPERS))


def kind_of(evidence: Evidence) -> ScriptKind:
    """The kind of a Python program."""
    if evidence.imports_any(_ANY_BACKEND):
        return ScriptKind.ANY_BACKEND
    if evidence.imports_any(_HOROVOD_HELPER):
        return ScriptKind.ELASTIC_HOROVOD
    if evidence.imports_any(*_TORCHRUN_HELPERS):
        return ScriptKind.TORCHRUN
    if evidence.imports_any("horovod") and evidence.uses("horovod", "init"):
        if any(".elastic" in name for name in evidence.names | evidence.imports if name.startswith("horovod")):
            return ScriptKind.ELASTIC_HOROVOD
        if not evidence.uses("torch", *_INITIALISERS):
            return ScriptKind.HOROVOD
        if not evidence.place:
            return ScriptKind.UNKNOWN  # one or the other, by an option
    return _kind_by_torch(evidence)


def _kind_by_torch(evidence: Evidence) -> ScriptKind:
    initialises = any(name.rpartition(".")[2] in _INITIALISERS for name in evidence.names | evidence.imports)
    spawns = evidence.uses("torch", "spawn", "start_processes")
    forks = evidence.uses("torch", "Process") or evidence.uses("multiprocessing", "Process")
    names_world_size = "init_process_group.world_size" in evidence.keywords
    if initialises and (spawns or ((forks or names_world_size) and not evidence.place)):
        return ScriptKind.OWN_RANKS
    several = any(evidence.imports_any(package) and evidence.uses(package, *ends) for package, ends in _TRAINERS)
    lightning = evidence.imports_any(*_LIGHTNING) and bool(
        {"Trainer.num_nodes", "Fabric.num_nodes"} & evidence.keywords
    )
    ranked = "LOCAL_RANK" in evidence.place or evidence.place >= {"RANK", "WORLD_SIZE"}
    if initialises or several or lightning or ranked:
        return ScriptKind.TORCHRUN
    return ScriptKind.SINGLE
