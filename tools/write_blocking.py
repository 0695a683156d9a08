"""Write the blocking clients, ``goddard/client/blocking_*.py``, from the asyncio classes.

    python -m tools.write_blocking [--check]        # `make generate`

Every public method of an asyncio class becomes one of the same name, parameters and docstring: a
coroutine is run on the shared loop and waited for; what gives an ``asyncio.Future`` is handed over
and gives a future for threads (``send_soon`` becomes ``send_async``); anything else is called on
the loop. Properties are read where they are. A test runs this and compares.

Functions of other modules that a class has as methods, as ``Admin`` has those of ``admin_topics``,
are written into a module and a class of their own (``blocking_admin_topics``, ``AdminTopics``),
which the blocking class inherits.
"""

import ast
import builtins
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ROOT / "src"
FACES: Final = {
    "blocking_producer": (
        "Producers for threads and scripts.",
        (
            ("goddard.client.produce.producer", "Producer"),
            ("goddard.client.produce.transactions", "TransactionProducer"),
        ),
    ),
    "blocking_push": (
        "The push consumer for threads and scripts.",
        (("goddard.client.consume.push", "PushConsumer"),),
    ),
    "blocking_lite": (
        "The lite pull consumer for threads and scripts.",
        (("goddard.client.consume.lite", "LitePullConsumer"),),
    ),
    "blocking_admin": (
        "Administration for threads and scripts.",
        (("goddard.client.admin.admin", "Admin"),),
    ),
}
# What the session calls is not for users, but for what has these names.
MEMBERS: Final = ("goddard.client.members", ("ProducerMember", "ConsumerMember"), {"group"})
NO_MEMBERS: Final = {"Admin"}
# What clients do for each other.
INTERNAL: Final = {
    *("session", "within", "join", "tracer", "wire_group", "next_portion", "send_encoded"),
}
# What BlockingClient has, and what takes another form.
IN_COMMON: Final = {
    *("start", "stop", "state", "client_id"),
    *("__init__", "__aenter__", "__aexit__", "__aiter__"),
}
RENAMED: Final = {"send_soon": "send_async", "__anext__": "__next__"}
# What the type checker alone imports from elsewhere is in Python's own library as well.
MOVED: Final = {"typing_extensions": "typing"}
OF_CALLBACKS: Final = """

``callback`` is called with the future when it is done, in a thread that is there for callbacks:
they may block, and use clients. What is added to the future itself runs on the loop instead.
"""
LINE_LENGTH: Final = 100

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """Where a name comes from: a module, or something in one."""

    module: str
    name: str | None

    def text(self, known_as: str) -> str:
        if self.name is None:
            renamed = "" if known_as == self.module else f" as {known_as}"
            return f"import {self.module}{renamed}"
        renamed = "" if known_as == self.name else f" as {known_as}"
        return f"from {self.module} import {self.name}{renamed}"


class _Unquoted(ast.NodeTransformer):
    """Takes annotations out of their quotes."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = _unquote(node.annotation)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = _unquote(node.returns)
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = _unquote(node.returns)
        return self.generic_visit(node)


def _unquote(node: ast.expr | None) -> ast.expr | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return ast.parse(node.value, mode="eval").body
    return node


class Source:
    """A module as text: what it defines and what it imports."""

    def __init__(self, module: str) -> None:
        self.module = module
        path = SOURCES.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        self.tree = _Unquoted().visit(ast.parse(path.read_text()))
        self.imports: dict[str, Import] = {}
        self.defined: dict[str, ast.stmt] = {}
        for node in self._top_level(self.tree.body):
            self._note(node)

    def origin(self, name: str) -> Import | None:
        """Where this module has a name from; None for Python's own."""
        if name in self.defined:
            return Import(self.module, name)
        if name in self.imports:
            found = self.imports[name]
            if found.name is not None and found.module.startswith("goddard."):
                home = source_of(found.module)
                # What a module passes on is imported from where it is made.
                return home.origin(found.name) if found.name in home.imports else found
            return found
        if hasattr(builtins, name):
            return None
        raise LookupError(f"{self.module} does not say what {name} is")

    def constant(self, name: str) -> ast.expr | None:
        """The value of a constant, if it is written out."""
        node = self.defined.get(name)
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        return value if isinstance(value, ast.Constant | ast.UnaryOp | ast.BinOp) else None

    def _top_level(self, body: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in body:
            yield node
            if isinstance(node, ast.If):  # TYPE_CHECKING
                yield from self._top_level(node.body)

    def _note(self, node: ast.stmt) -> None:
        match node:
            case ast.ImportFrom(module=str(module)):
                module = MOVED.get(module, module)
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = Import(module, alias.name)
            case ast.Import():
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = Import(alias.name, None)
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                self.defined[node.name] = node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                self.defined[name] = node


@cache
def source_of(module: str) -> Source:
    return Source(module)


@dataclass
class Module:
    """A module that is being written; ``parts`` are those that it is made of."""

    title: str
    imports: dict[str, Import] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)
    parts: "dict[str, Module]" = field(default_factory=dict)

    def use(self, source: Source, nodes: Iterable[ast.AST | None]) -> None:
        """Import whatever names annotations and defaults need."""
        for node in nodes:
            for part in ast.walk(node) if node is not None else ():
                if isinstance(part, ast.Name):
                    self.need(part.id, source.origin(part.id))

    def need(self, name: str, origin: Import | None) -> None:
        if origin is None:
            return
        if self.imports.setdefault(name, origin) != origin:
            raise LookupError(f"two things are called {name}: {self.imports[name]} and {origin}")


def methods(source: Source, name: str) -> Iterator[tuple[Source, str, Function]]:
    """The functions of a class in their order, each with the module that it is written in."""
    node = source.defined[name]
    assert isinstance(node, ast.ClassDef)
    for item in node.body:
        match item:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield source, item.name, item
            case ast.Assign(targets=[ast.Name(id=own)], value=value):
                found = _function(source, value)
                if found is not None:
                    yield found[0], own, found[1]


def _function(source: Source, value: ast.expr) -> tuple[Source, Function] | None:
    """What ``method = function`` or ``method = module.function`` names."""
    match value:
        case ast.Name(id=name):
            origin = source.origin(name)
        case ast.Attribute(value=ast.Name(id=module), attr=attribute):
            base = source.imports.get(module)
            if base is None:
                return None
            full = base.module if base.name is None else f"{base.module}.{base.name}"
            origin = Import(full, attribute)
        case _:
            return None
    if origin is None or origin.name is None or not origin.module.startswith("goddard."):
        return None
    home = source_of(origin.module)
    node = home.defined.get(origin.name)
    return (home, node) if isinstance(node, Function) else None


def called_by_sessions() -> set[str]:
    home, protocols, public = MEMBERS
    source = source_of(home)
    return {name for item in protocols for _, name, _ in methods(source, item)} - public


def docstring(node: Function | ast.ClassDef, indent: str, more: str = "") -> str:
    text = ast.get_docstring(node)
    if text is None:
        return ""
    text += more.rstrip()
    text = re.sub(r"\basync (?=with\b|for\b)|\bawait ", "", text)
    paragraphs = []
    for paragraph in text.split("\n\n"):
        width = LINE_LENGTH - len(indent)
        is_prose = not any(line.startswith(" ") for line in paragraph.splitlines())
        if is_prose and max(map(len, paragraph.splitlines()), default=0) > width - 6:
            paragraphs.append(textwrap.fill(paragraph, width - 6, break_on_hyphens=False))
        else:
            paragraphs.append(paragraph)
    body = "\n\n".join(paragraphs).replace("\\", "\\\\")
    closing = "\n" if "\n" in body else ""
    quoted = f'"""{body}{closing}"""'
    return textwrap.indent(quoted, indent).replace("\n" + indent + "\n", "\n\n") + "\n"


def _inline(source: Source, arguments: ast.arguments) -> None:
    """Write constants out where they are defaults, as a reader of the signature wants them."""
    defaults: list[ast.expr | None] = [*arguments.defaults, *arguments.kw_defaults]
    for place, node in enumerate(defaults):
        if isinstance(node, ast.Name):
            origin = source.origin(node.id)
            if origin is not None and origin.name and origin.module.startswith("goddard."):
                value = source_of(origin.module).constant(origin.name)
                if value is not None:
                    defaults[place] = value
    positional = len(arguments.defaults)
    arguments.defaults = [node for node in defaults[:positional] if node is not None]
    arguments.kw_defaults = defaults[positional:]


def call_arguments(arguments: ast.arguments) -> str:
    """The parameters, passed on."""
    positional = [item.arg for item in [*arguments.posonlyargs, *arguments.args][1:]]
    given = list(positional)
    if arguments.vararg is not None:
        given.append(f"*{arguments.vararg.arg}")
    given += [f"{item.arg}={item.arg}" for item in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        given.append(f"**{arguments.kwarg.arg}")
    return ", ".join(given)


def _annotations(arguments: ast.arguments) -> Iterator[ast.AST | None]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for item in [*every, arguments.vararg, arguments.kwarg]:
        if item is not None:
            yield item.annotation
    yield from arguments.defaults
    yield from arguments.kw_defaults


def _is_future(returns: ast.expr | None) -> ast.expr | None:
    """What an ``asyncio.Future[T]`` is a future of."""
    match returns:
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id="asyncio"), attr="Future")):
            return returns.slice
    return None


def _decorators(node: Function) -> set[str]:
    return {ast.unparse(item) for item in node.decorator_list}


def write_method(module: Module, source: Source, name: str, node: Function) -> str:
    decorators = _decorators(node)
    arguments = deepcopy(node.args)
    if arguments.posonlyargs or arguments.args:
        first = [*arguments.posonlyargs, *arguments.args][0]
        first.arg, first.annotation = "self", None
    _inline(source, arguments)
    future_of = _is_future(node.returns)
    doc = docstring(node, "        ", OF_CALLBACKS if future_of is not None else "")
    own = RENAMED.get(name, name)
    if "property" in decorators or any(item.endswith(".setter") for item in decorators):
        return _write_property(module, source, node, doc)
    if decorators:
        raise NotImplementedError(f"{name} is decorated with {decorators}")

    passed = call_arguments(arguments)
    call = f"self._core.{name}({passed})"
    if future_of is not None:
        callback = ast.parse(
            f"def f(*, callback: Callable[[Future[{ast.unparse(future_of)}]], object] | None = None"
            "): ..."
        ).body[0]
        assert isinstance(callback, ast.FunctionDef)
        arguments.kwonlyargs.insert(0, callback.args.kwonlyargs[0])
        arguments.kw_defaults.insert(0, callback.args.kw_defaults[0])
        module.need("Callable", Import("collections.abc", "Callable"))
        module.need("Future", Import("concurrent.futures", "Future"))
        module.use(
            source,
            (
                item
                for item in _annotations(arguments)
                if item is not None and "Future" not in ast.unparse(item)
            ),
        )
        module.use(source, [future_of])
        returns = f"Future[{ast.unparse(future_of)}]"
        body = f"return self._submit(lambda: {call}, callback)"
    else:
        module.use(source, [*_annotations(arguments), node.returns])
        returns = ast.unparse(node.returns) if node.returns is not None else "None"
        runner = "_run" if isinstance(node, ast.AsyncFunctionDef) else "_do"
        keyword = "" if returns == "None" else "return "
        begin = f"lambda: {call}" if passed else f"self._core.{name}"
        body = f"{keyword}self.{runner}({begin})"
    if name == "__anext__":
        body = "return self._next(self._core.next_portion)"
    head = f"    def {own}({ast.unparse(arguments)}) -> {returns}:\n"
    return head + doc + textwrap.indent(body, "        ") + "\n"


def _write_property(module: Module, source: Source, node: Function, doc: str) -> str:
    module.use(source, [*_annotations(node.args), node.returns])
    decorator = ast.unparse(node.decorator_list[0])
    head = f"    @{decorator}\n    def {node.name}({ast.unparse(node.args)})"
    if decorator == "property":
        assert node.returns is not None
        body = f"        return self._core.{node.name}\n"
        return f"{head} -> {ast.unparse(node.returns)}:\n{doc}{body}"
    value = node.args.args[1].arg
    return f"{head} -> None:\n{doc}        self._core.{node.name} = {value}\n"


def write_class(module: Module, home: str, name: str) -> None:
    source = source_of(home)
    node = source.defined[name]
    assert isinstance(node, ast.ClassDef)
    found = {own: (origin, function) for origin, own, function in methods(source, name)}
    parents = [
        base.id
        for base in node.bases
        if isinstance(base, ast.Name) and any(base.id in text for text in module.classes)
    ]
    core = f"Async{name}"
    module.need(core, Import(home, name))
    module.need("BlockingClient", Import("goddard.client.blocking", "BlockingClient"))
    parts = write_parts(module, source, name)
    parent = ", ".join(parts or parents) or f"BlockingClient[{core}]"
    text = f"class {name}({parent}):\n" + docstring(node, "    ") + "\n"
    if parents:
        text += f"    _core: {core}\n\n"

    origin, init = found["__init__"]
    arguments = deepcopy(init.args)
    _inline(origin, arguments)
    module.use(origin, _annotations(arguments))
    text += f"    def __init__({ast.unparse(arguments)}) -> None:\n{docstring(init, ' ' * 8)}"
    text += f"        BlockingClient.__init__(self, {core}({call_arguments(arguments)}))\n\n"

    if "__aiter__" in found:
        module.need("Self", Import("typing", "Self"))
        text += "    def __iter__(self) -> Self:\n        return self\n\n"
    for origin, own, function in shown_methods(source, name):
        if origin is source:
            text += write_method(module, origin, own, function) + "\n"
    module.classes.append(text)


def shown_methods(source: Source, name: str) -> Iterator[tuple[Source, str, Function]]:
    """The methods of a class that its blocking face has as well."""
    left_out = IN_COMMON | INTERNAL
    if name not in NO_MEMBERS:
        left_out |= called_by_sessions()
    for origin, own, function in methods(source, name):
        if own not in left_out and (own in RENAMED or not own.startswith("_")):
            yield origin, own, function


def write_parts(module: Module, source: Source, name: str) -> list[str]:
    """Write the methods that come from other modules; gives the classes that have them."""
    core = f"Async{name}"
    written: dict[str, str] = {}
    for origin, own, function in shown_methods(source, name):
        if origin is source:
            continue
        stem = origin.module.removeprefix("goddard.client.").replace(".", "_")
        file_name = f"blocking_{stem}"
        class_name = "".join(word.capitalize() for word in stem.split("_"))
        if class_name not in written:
            about = (ast.get_docstring(origin.tree) or "").partition("\n")[0]
            module.parts[file_name] = part = Module(about)
            part.need(core, Import(source.module, name))
            part.need("BlockingClient", Import("goddard.client.blocking", "BlockingClient"))
            module.need(class_name, Import(f"goddard.client.{file_name}", class_name))
            written[class_name] = f"class {class_name}(BlockingClient[{core}]):\n"
        part = module.parts[file_name]
        written[class_name] += write_method(part, origin, own, function) + "\n"
    for part, text in zip(module.parts.values(), written.values(), strict=True):
        part.classes.append(text)
    return list(written)


def write_face(name: str) -> dict[str, str]:
    """The texts of a blocking module, and of those that it is made of, by name."""
    title, classes = FACES[name]
    module = Module(title)
    for home, class_name in classes:
        write_class(module, home, class_name)
    for _, class_name in classes:
        module.imports.pop(class_name, None)
    return {own: module_text(part) for own, part in [(name, module), *module.parts.items()]}


def module_text(module: Module) -> str:
    imports = "\n".join(sorted(origin.text(name) for name, origin in module.imports.items()))
    note = "Written by tools/write_blocking.py from the asyncio classes: change those instead."
    text = f'"""{module.title}\n\n{note}\n"""\n\n{imports}\n\n' + "\n\n".join(module.classes)
    # Said here, as ruff looks for modules, some of which may only be about to be written.
    first_party = ("--config", "lint.isort.known-first-party=['goddard']")
    return tidy(_ruff(text, "check", "--select", "I", "--fix", "--quiet", *first_party))


def tidy(text: str) -> str:
    """Python as ruff formats it."""
    return _ruff(text, "format", "--quiet")


def _ruff(text: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", "blocking.py", "-"]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60
    )
    if done.returncode != 0:
        raise RuntimeError(f"ruff does not like what was written: {done.stderr}\n{text}")
    return done.stdout


def write(texts: dict[Path, str]) -> int:
    """Write files, or with ``--check`` say which of them are not as they would be written."""
    is_check = "--check" in sys.argv[1:]
    stale = [path for path, text in texts.items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        if is_check:
            print(f"{path.relative_to(ROOT)} is out of date: run `make generate`")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[path])
            print(f"{path.relative_to(ROOT)} written")
    return 1 if is_check and stale else 0


def main() -> int:
    folder = SOURCES / "goddard" / "client"
    texts = {own: text for name in FACES for own, text in write_face(name).items()}
    return write({folder / f"{name}.py": text for name, text in texts.items()})


if __name__ == "__main__":
    sys.exit(main())
