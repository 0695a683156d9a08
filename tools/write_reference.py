"""Write the API reference, ``docs/reference/*.md``, from signatures and docstrings.

    python -m tools.write_reference [--check]       # `make generate`

What is public is what ``goddard`` exports; every such name is on one of the pages. Nothing is
imported, only read. A test runs this and compares.
"""

import ast
import re
import sys
from collections.abc import Iterator
from typing import Final

from tools.write_blocking import ROOT, Function, Source, source_of, tidy, write

FOLDER: Final = ROOT / "docs" / "reference"
PAGES: Final = {
    "producers": (
        "Sending",
        "Producers, and what they give back.",
        (
            *("Producer", "ProducerOptions", "AccumulatorOptions", "BackPressureOptions"),
            *("TraceOptions", "CompressionKind", "SendResult", "SendStatus", "TransactionProducer"),
            *("TransactionListener", "TransactionState", "TransactionResult", "create_reply"),
        ),
    ),
    "consumers": (
        "Consuming",
        "Consumers, and what they are told and asked.",
        (
            *("PushConsumer", "ConsumeResult", "ConsumeContext", "OrderlyContext"),
            *("LitePullConsumer", "Tags", "Sql", "ConsumeFrom", "MessageModel"),
        ),
    ),
    "messages": (
        "Messages",
        "What is sent, what arrives, and where it lies.",
        ("Message", "ReceivedMessage", "MessageQueue"),
    ),
    "options": (
        "Common options",
        "What every client takes as keywords besides its own.",
        ("SessionOptions", "Credentials", "TlsOptions", "ServiceState"),
    ),
    "admin": ("Administration", "Topics, groups, brokers, offsets.", ("Admin",)),
    "errors": (
        "Errors",
        "Everything that is raised on purpose is a `GoddardError`.",
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
    "ProducerOptions": "goddard.client.produce.options",
    "SessionOptions": "goddard.client.options",
}
_signatures: Final[list[str]] = []
NOTE: Final = (
    "<!-- Written by tools/write_reference.py from the docstrings: change those instead. -->"
)


def home_of(name: str) -> Source:
    if name in ELSEWHERE:
        return source_of(ELSEWHERE[name])
    origin = source_of("goddard").origin(name)
    assert origin is not None
    return source_of(origin.module)


def paragraphs(node: Function | ast.ClassDef) -> str:
    """A docstring as Markdown: its double backquotes become single ones."""
    text = (ast.get_docstring(node) or "").replace("\n\n::\n\n", "\n\n")
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def signature(name: str, node: Function, *, is_method: bool) -> str:
    """``name(parameters) -> result``, in one line or one parameter to a line."""
    text = f"def {name}({ast.unparse(node.args)})"
    if node.returns is not None:
        text += f" -> {ast.unparse(node.returns)}"
    if isinstance(node, ast.AsyncFunctionDef):
        text = f"async {text}"
    if is_method:
        text = re.sub(r"\(self(, )?", "(", text, count=1)
    _signatures.append(f"{text}: ...")
    return f"<signature {len(_signatures) - 1}>"


def fill_in(text: str) -> str:
    """Put the signatures in their places, tidied all at once."""
    separator = "\n# next\n"
    tidied = tidy(separator.join(_signatures)).split("# next\n")
    shown = [item.strip().removeprefix("def ").removesuffix(": ...") for item in tidied]
    assert len(shown) == len(_signatures)
    return re.sub(r"<signature (\d+)>", lambda match: shown[int(match[1])], text)


def constructor(source: Source, node: ast.ClassDef) -> str | None:
    """How an object is made; None of what users do not make."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            item.returns = None
            return signature(node.name, item, is_method=True)
    return None


def parents(source: Source, node: ast.ClassDef) -> Iterator[tuple[Source, ast.ClassDef]]:
    """The classes of ours that a class is made of, the nearest first; some of them repeatedly."""
    for base in node.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        origin = source.origin(name.id) if isinstance(name, ast.Name) else None
        if origin is None or origin.name is None or not origin.module.startswith("goddard."):
            continue
        home = source_of(origin.module)
        found = home.defined[origin.name]
        if isinstance(found, ast.ClassDef):
            yield home, found
            yield from parents(home, found)


def describe_class(source: Source, node: ast.ClassDef) -> Iterator[str]:
    bases = [ast.unparse(base) for base in node.bases]
    yield f"## {node.name}"
    made = constructor(source, node)
    if made is not None and not any(base.endswith("Error") for base in [node.name, *bases]):
        yield f"```python\n{made}\n```"
    yield paragraphs(node)
    values = list(describe_values(node))
    if values:
        yield "\n".join(values)
    if node.name in ELSEWHERE:
        return
    described: set[str] = set()
    # What several have in common comes last, as when Python looks for a method.
    ancestors = list(dict.fromkeys(reversed([parent for _, parent in parents(source, node)])))
    for owner in [node, *reversed(ancestors)]:
        exported = owner is not node and owner.name in source_of("goddard").imports
        if exported:
            yield f"And everything of [{owner.name}](#{owner.name.lower()})."
            break
        for item in owner.body:
            if isinstance(item, Function) and is_described(item) and item.name not in described:
                described.add(item.name)
                yield from describe_method(item)


def is_described(node: Function) -> bool:
    """Public, with something to say; of an attribute that can be set, the reading half."""
    is_setter = any(ast.unparse(item).endswith(".setter") for item in node.decorator_list)
    return not node.name.startswith("_") and not is_setter


def describe_method(node: Function) -> Iterator[str]:
    if any(ast.unparse(item) in ("property", "cached_property") for item in node.decorator_list):
        kind = ast.unparse(node.returns) if node.returns is not None else "None"
        shown = f"{node.name}: {kind}"
    else:
        shown = signature(node.name, node, is_method=True)
    yield f"### {node.name}"
    yield f"```python\n{shown}\n```"
    yield paragraphs(node)


def describe_values(node: ast.ClassDef) -> Iterator[str]:
    """The members of an enumeration, the fields of a tuple or of a set of options."""
    for item in node.body:
        match item:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant()) if name.isupper():
                yield f"- `{name}`"
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=value):
                if not name.startswith("_"):
                    default = f" = {ast.unparse(value)}" if value is not None else ""
                    yield f"- `{name}: {ast.unparse(kind)}{default}`"


def write_page(name: str) -> str:
    title, about, names = PAGES[name]
    parts = [NOTE, f"# {title}", about]
    for public in names:
        source = home_of(public)
        node = source.defined[public]
        if isinstance(node, ast.ClassDef):
            parts += describe_class(source, node)
        elif isinstance(node, Function):
            shown = signature(public, node, is_method=False)
            parts += [f"## {public}", f"```python\n{shown}\n```", paragraphs(node)]
        else:
            raise NotImplementedError(public)
    return "\n\n".join(part for part in parts if part) + "\n"


def write_index() -> str:
    lines = [
        NOTE,
        "",
        "# Reference",
        "",
        "All names are in `goddard`. `goddard.aio` has the same names for asyncio: there the",
        "methods that wait are coroutines, and `send_async` is `send_soon` with a future of",
        "asyncio's.",
        "",
    ]
    for page, (title, about, names) in PAGES.items():
        lines += [f"- [{title}]({page}.md): {about}"]
        lines += ["  " + ", ".join(f"[{name}]({page}.md#{name.lower()})" for name in names)]
    return "\n".join(lines) + "\n"


def main() -> int:
    listed = {name for _, _, names in PAGES.values() for name in names} - ELSEWHERE.keys()
    if odd := listed ^ source_of("goddard").imports.keys():
        raise LookupError(f"on no page, or gone: {sorted(odd)}")
    pages = {"README.md": write_index(), **{f"{name}.md": write_page(name) for name in PAGES}}
    return write({FOLDER / name: fill_in(text) for name, text in pages.items()})


if __name__ == "__main__":
    sys.exit(main())
