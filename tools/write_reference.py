"""Write the API reference, ``docs/reference/*.md``, from signatures and docstrings.

    python -m tools.write_reference [--check]       # `make generate`

What is public is what ``goddard`` exports; every such name is on one of the pages. Nothing is
imported, only read. A test runs this and compares.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Final

from goddard.client.blocking.methods import in_blocking_words
from tools.source import ROOT, Function, Import, Source, source_of, tidy

FOLDER: Final = ROOT / "docs" / "reference"
PAGES: Final = {
    "producers": (
        "Sending",
        "Producers, their options and results.",
        (
            *("Producer", "ProducerOptions", "AccumulatorOptions", "BackPressureOptions"),
            *("TraceOptions", "CompressionKind", "SendResult", "SendStatus", "TransactionProducer"),
            *("TransactionListener", "TransactionState", "TransactionResult", "create_reply"),
        ),
    ),
    "consumers": (
        "Consuming",
        "Consumers, their listeners and subscriptions.",
        (
            *("PushConsumer", "PushOptions", "ConsumerOptions"),
            *("ConsumeResult", "ConsumeContext", "OrderlyContext"),
            *("LitePullConsumer", "LiteOptions", "Tags", "Sql", "ConsumeFrom", "MessageModel"),
        ),
    ),
    "messages": (
        "Messages",
        "Messages and queues.",
        ("Message", "ReceivedMessage", "MessageQueue"),
    ),
    "options": (
        "Common options",
        "Keywords that every client takes besides its own.",
        ("SessionOptions", "Credentials", "TlsOptions", "ServiceState"),
    ),
    "admin": (
        "Administration",
        "Topics, groups, offsets, messages, brokers and name servers.",
        ("Admin",),
    ),
    "errors": (
        "Errors",
        "Goddard raises subclasses of `GoddardError`.",
        (
            *("GoddardError", "ConfigError", "RemotingError", "ClientError", "NotRunningError"),
            *("NoNameServerError", "NameServerError", "NoRouteError"),
            *("BrokerError", "BrokerNotFoundError", "ClusterNotFoundError"),
            *("SendFailedError", "BatchFailedError", "PartialFailureError", "InvalidMessageError"),
            *("TooManyRequestsError", "RequestReplyTimeoutError"),
            *("NoReplyAddressError", "OffsetNotFoundError", "ForkedError"),
        ),
    ),
}
# Not in `goddard` itself: their fields are keywords of the clients.
ELSEWHERE: Final = {
    "ConsumerOptions": "goddard.client.consume.options",
    "LiteOptions": "goddard.client.consume.options",
    "ProducerOptions": "goddard.client.produce.options",
    "PushOptions": "goddard.client.consume.options",
    "SessionOptions": "goddard.client.options",
}
NOTE: Final = (
    "<!-- Written by tools/write_reference.py from the docstrings: change those instead. -->"
)
TYPES: Final = (
    "Other types",
    "What methods take and return besides the names of `goddard`, each with its module.",
)
# How the blocking classes make a method of one of an asyncio class.
MAKERS: Final = ("blocking", "on_loop")
# What converts public values from and to protocol values.
CONVERSIONS: Final = {"from_body", "to_body", "from_record"}

_signatures: Final[list[str]] = []
# What the page of other types has to describe, in the order of their first mention.
_mentioned: Final[dict[Import, None]] = {}


def home_of(name: str) -> Source:
    if name in ELSEWHERE:
        return source_of(ELSEWHERE[name])
    origin = source_of("goddard").origin(name)
    assert origin is not None
    return source_of(origin.module)


# --- Texts ----------------------------------------------------------------------------------------


def paragraphs(text: str | None) -> str:
    """A docstring as Markdown: double backquotes become single ones."""
    return re.sub(r"``([^`]+)``", r"`\1`", (text or "").replace("\n\n::\n\n", "\n\n"))


def annotation(source: Source, node: ast.expr) -> str:
    """A type as text. Goddard's types in it are collected for the page of other types."""
    plain = _Plain(source)
    text = ast.unparse(plain.visit(deepcopy(node)))
    _mentioned.update(plain.found)
    return text


def other_types(source: Source, node: Function) -> list[str]:
    """The types in a signature that are described on the page of other types."""
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    kinds = [item.annotation for item in every if item.annotation is not None]
    if node.returns is not None:
        kinds.append(node.returns)
    found: dict[Import, None] = {}
    for kind in kinds:
        names = _Plain(source)
        names.visit(deepcopy(kind))
        found.update(names.found)
    return [str(origin.name) for origin in found if origin not in on_pages()]


@cache
def on_pages() -> frozenset[Import]:
    """The names that are described on another page."""
    names = (name for _, _, names in PAGES.values() for name in names)
    return frozenset(Import(home_of(name).module, name) for name in names)


class _Plain(ast.NodeTransformer):
    """Replaces ``Annotated[T, ...]`` aliases by ``T``, and collects Goddard's other types."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.found: dict[Import, None] = {}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        origin = self._source.origin(node.id)
        if origin is None or origin.name is None or not origin.module.startswith("goddard."):
            return node
        if origin.module.startswith("goddard.environment."):  # for our tests
            return node
        match source_of(origin.module).defined.get(origin.name):
            case ast.Assign(
                value=ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=of))
            ):
                return of[0]
            case ast.Assign(value=ast.Call()):  # a TypeVar
                return node
        self.found.setdefault(origin)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """``module.Class`` of a module of Goddard."""
        base = node.value.id if isinstance(node.value, ast.Name) else ""
        module = self._source.imports.get(base)
        if module is not None and module.module.startswith("goddard."):
            self.found.setdefault(Import(f"{module.module}.{module.name}", node.attr))
        return node


def signature(source: Source, name: str, node: Function, *, is_method: bool = True) -> str:
    """``name(parameters) -> result``, in one line or with one parameter per line."""
    arguments = deepcopy(node.args)
    _write_defaults_out(source, arguments)
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for item in [*every, arguments.vararg, arguments.kwarg]:
        if item is not None and item.annotation is not None:
            item.annotation = ast.parse(annotation(source, item.annotation), mode="eval").body
    text = f"def {name}({ast.unparse(arguments)})"
    if node.returns is not None:
        text += f" -> {annotation(source, node.returns)}"
    if is_method:
        text = re.sub(r"\(self(, )?", "(", text, count=1)
    _signatures.append(f"{text}: ...")
    return f"<signature {len(_signatures) - 1}>"


def _write_defaults_out(source: Source, arguments: ast.arguments) -> None:
    """Replace constants that are defaults by their values."""

    arguments.defaults = [_written_out(source, node) for node in arguments.defaults]
    arguments.kw_defaults = [
        None if node is None else _written_out(source, node) for node in arguments.kw_defaults
    ]


def _written_out(source: Source, node: ast.expr) -> ast.expr:
    """The value of a constant, if the expression names one."""
    origin = source.origin(node.id) if isinstance(node, ast.Name) else None
    if origin is None or origin.name is None or not origin.module.startswith("goddard."):
        return node
    return source_of(origin.module).constant(origin.name) or node


def fill_in(text: str) -> str:
    """Put the signatures in their places, formatted all at once."""
    separator = "\n# next\n"
    tidied = tidy(separator.join(_signatures)).split("# next\n")
    shown = [item.strip().removeprefix("def ").removesuffix(": ...") for item in tidied]
    assert len(shown) == len(_signatures)
    return re.sub(r"<signature (\d+)>", lambda match: shown[int(match[1])], text)


# --- Classes --------------------------------------------------------------------------------------


def class_of(source: Source, node: ast.expr) -> tuple[Source, ast.ClassDef] | None:
    """The class of Goddard that an expression names."""
    name = node.value if isinstance(node, ast.Subscript) else node
    origin = source.origin(name.id) if isinstance(name, ast.Name) else None
    if origin is None or origin.name is None or not origin.module.startswith("goddard."):
        return None
    home = source_of(origin.module)
    found = home.defined[origin.name]
    return (home, found) if isinstance(found, ast.ClassDef) else None


def parents(source: Source, node: ast.ClassDef) -> Iterator[tuple[Source, ast.ClassDef]]:
    """Goddard's base classes of a class, the nearest first; some of them repeatedly."""
    for base in node.bases:
        found = class_of(source, base)
        if found is not None:
            yield found
            yield from parents(*found)


def method_of(source: Source, node: ast.ClassDef, name: str) -> tuple[Source, Function]:
    """A method of a class or of its base classes."""
    for home, owner in [(source, node), *parents(source, node)]:
        for item in owner.body:
            if isinstance(item, Function) and item.name == name:
                return home, item
    raise LookupError(f"{node.name} has no method {name}")


def class_docstring(source: Source, node: ast.ClassDef) -> str | None:
    """Its own, or that of the asyncio class: ``__doc__ = docstring(AsyncClass)``."""
    for item in node.body:
        match item:
            case ast.Assign(targets=[ast.Name(id="__doc__")], value=ast.Call(args=[of])):
                found = class_of(source, of)
                assert found is not None
                return in_blocking_words(ast.get_docstring(found[1]) or "")
    return ast.get_docstring(node)


def constructor(source: Source, node: ast.ClassDef) -> tuple[str, str | None] | None:
    """The signature and the docstring of ``__init__``; None without it."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            home, init = source, item
            for decorator in item.decorator_list:
                assert isinstance(decorator, ast.Call)
                core = class_of(source, decorator.args[0])
                assert core is not None
                home, found = method_of(*core, "__init__")
                assert isinstance(found, ast.FunctionDef)
                init = found
            init = deepcopy(init)
            init.returns = None
            return signature(home, node.name, init), ast.get_docstring(init)
    return None


def describe_class(source: Source, node: ast.ClassDef) -> Iterator[str]:
    bases = [ast.unparse(base) for base in node.bases]
    is_error = any(base.endswith("Error") for base in [node.name, *bases])
    made = None if is_error else constructor(source, node)
    if made is not None:
        yield f"```python\n{made[0]}\n```"
    yield paragraphs(class_docstring(source, node))
    if made is not None:
        yield paragraphs(made[1])
    # Of a body, the fields that all bodies have are left out.
    values = list(describe_values(source, node))
    # An error refers to its base class for the others.
    for home, parent in () if is_error else parents(source, node):
        if not home.module.startswith("goddard.protocol.bodies") or parent.bases:
            values += [line for line in describe_values(home, parent) if line not in values]
    if values:
        yield "\n".join(values)
    if node.name not in ELSEWHERE:
        yield from describe_methods(source, node)


def describe_methods(source: Source, node: ast.ClassDef) -> Iterator[str]:
    described: set[str] = set()
    # Common base classes come last, as in the method resolution order.
    ancestors = list(dict.fromkeys(reversed(list(parents(source, node)))))
    for home, owner in [(source, node), *reversed(ancestors)]:
        if owner is not node and owner.name in source_of("goddard").imports:
            yield f"And everything of [{owner.name}](#{owner.name.lower()})."
            break
        for item in owner.body:
            match item:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    name, found, text = item.name, (home, item), ast.get_docstring(item)
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(
                        func=ast.Name(id=maker), args=[ast.Attribute(value=core, attr=attribute)]
                    ),
                ) if maker in MAKERS:
                    core_class = class_of(home, core)
                    assert core_class is not None
                    found = method_of(*core_class, attribute)
                    text = in_blocking_words(ast.get_docstring(found[1]) or "")
                case _:
                    continue
            if name not in described and is_described(found[1]):
                described.add(name)
                yield from describe_method(*found, name, text)


def is_described(node: Function) -> bool:
    """Whether it is public; of an attribute that can be set, only the reading half is."""
    is_setter = any(ast.unparse(item).endswith(".setter") for item in node.decorator_list)
    return not (node.name.startswith("_") or is_setter or node.name in CONVERSIONS)


def describe_method(source: Source, node: Function, name: str, text: str | None) -> Iterator[str]:
    if any(ast.unparse(item) in ("property", "cached_property") for item in node.decorator_list):
        kind = annotation(source, node.returns) if node.returns is not None else "None"
        shown = f"{name}: {kind}"
    else:
        shown = signature(source, name, node)
    yield f"### {name}"
    yield f"```python\n{shown}\n```"
    yield paragraphs(text)
    others = other_types(source, node)
    if others:
        yield "Types: " + ", ".join(f"[{name}](types.md#{name.lower()})" for name in others) + "."


def describe_values(source: Source, node: ast.ClassDef) -> Iterator[str]:
    """The members of an enumeration, the fields of a tuple, of a body or of a set of options."""
    for item in node.body:
        match item:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant()) if name.isupper():
                yield f"- `{name}`"
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=value):
                if not name.startswith("_"):
                    yield f"- `{name}: {annotation(source, kind)}{_default(source, value)}`"


def _default(source: Source, value: ast.expr | None) -> str:
    match None if value is None else _written_out(source, value):
        case None:
            return ""
        case ast.Call(
            func=ast.Name(id="written"), args=[ast.Name(id="dict" | "list" | "set" as kind)]
        ):
            return {"dict": " = {}", "list": " = []", "set": " = set()"}[kind]
        case ast.Call(func=ast.Name(id="written"), args=[default]):
            return f" = {ast.unparse(_written_out(source, default))}"
        case ast.Call(func=ast.Name(id="field"), keywords=[ast.keyword(value=factory)]):
            return f" = {ast.unparse(factory)}()"
        case default:
            return f" = {ast.unparse(default)}"


# --- Pages ----------------------------------------------------------------------------------------


def write_page(name: str) -> str:
    title, about, names = PAGES[name]
    parts = [NOTE, f"# {title}", about]
    for public in names:
        source = home_of(public)
        node = source.defined[public]
        parts.append(f"## {public}")
        if isinstance(node, ast.ClassDef):
            parts += describe_class(source, node)
        elif isinstance(node, Function):
            shown = signature(source, public, node, is_method=False)
            parts += [f"```python\n{shown}\n```", paragraphs(ast.get_docstring(node))]
        else:
            raise NotImplementedError(public)
    return "\n\n".join(part for part in parts if part) + "\n"


def write_types() -> str:
    """The page of all types that this and the other pages mention."""
    described = set(on_pages())
    sections: dict[str, list[str]] = {}
    while left := [origin for origin in _mentioned if origin not in described]:
        for origin in left:
            described.add(origin)
            assert origin.name is not None
            sections[origin.name] = list(describe_type(source_of(origin.module), origin.name))
    title, about = TYPES
    parts = [NOTE, f"# {title}", about]
    for name, section in sorted(sections.items()):
        parts += [f"## {name}", *section]
    return "\n\n".join(part for part in parts if part) + "\n"


def describe_type(source: Source, name: str) -> Iterator[str]:
    yield f"In `{source.module}`."
    match source.defined[name]:
        case ast.ClassDef() as node:
            yield from describe_class(source, node)
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            yield f"```python\n{name} = {annotation(source, value)}\n```"
            yield paragraphs(alias_docstring(source, name))
        case _:
            raise NotImplementedError(name)


def alias_docstring(source: Source, name: str) -> str | None:
    """The string that follows the definition of an alias."""
    body = source.tree.body
    match body[body.index(source.defined[name]) + 1 :]:
        case [ast.Expr(value=ast.Constant(value=str(text))), *_]:
            return inspect.cleandoc(text)
    return None


def write_index() -> str:
    lines = [
        NOTE,
        "",
        "# Reference",
        "",
        "The names are in `goddard`, except those in the list below. `goddard.aio` has the same",
        "names for asyncio: there the methods that wait are coroutines, and `send_soon` takes the",
        "place of `send_async` and returns a future of asyncio.",
        "",
        *(f"- `{name}` is in `{module}`." for name, module in ELSEWHERE.items()),
        "",
        "The pages:",
        "",
    ]
    for page, (title, about, names) in PAGES.items():
        lines += [f"- [{title}]({page}.md): {about}"]
        lines += ["  " + ", ".join(f"[{name}]({page}.md#{name.lower()})" for name in names)]
    lines += [f"- [{TYPES[0]}](types.md): {TYPES[1]}"]
    return "\n".join(lines) + "\n"


def write(texts: dict[Path, str], *, is_check: bool) -> int:
    """Write the files, or with ``--check`` name those that differ."""
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
    listed = {name for _, _, names in PAGES.values() for name in names} - ELSEWHERE.keys()
    if odd := listed ^ source_of("goddard").imports.keys():
        raise LookupError(f"on no page, or gone: {sorted(odd)}")
    pages = {"README.md": write_index(), **{f"{name}.md": write_page(name) for name in PAGES}}
    pages["types.md"] = write_types()
    texts = {FOLDER / name: fill_in(text) for name, text in pages.items()}
    return write(texts, is_check="--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
