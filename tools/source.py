"""Python modules as text: what they define, what they import, and formatted code.

Nothing is imported, only read.
"""

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ROOT / "src"

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """Where a name comes from: a module, or something in one."""

    module: str
    name: str | None


class _Unquoted(ast.NodeTransformer):
    """Removes the quotes around annotations."""

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
        if path.is_dir():
            # A stub has the names that the module imports lazily.
            stub = path / "__init__.pyi"
            path = stub if stub.is_file() else path / "__init__.py"
        else:
            path = path.with_suffix(".py")
        self.tree = _Unquoted().visit(ast.parse(path.read_text()))
        self.imports: dict[str, Import] = {}
        self.defined: dict[str, ast.stmt] = {}
        for node in self._top_level(self.tree.body):
            self._add(node)

    def origin(self, name: str) -> Import | None:
        """Where a name of this module is defined; None for a builtin."""
        if name in self.defined:
            return Import(self.module, name)
        if name in self.imports:
            found = self.imports[name]
            if found.name is not None and found.module.startswith("goddard."):
                home = source_of(found.module)
                # Re-exported names count as those of the module that defines them.
                return home.origin(found.name) if found.name in home.imports else found
            return found
        if hasattr(builtins, name):
            return None
        raise LookupError(f"{self.module} neither defines nor imports {name}")

    def constant(self, name: str) -> ast.expr | None:
        """The value of a constant, if it is written out."""
        node = self.defined.get(name)
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        match value:
            case ast.Call(func=ast.Name(id="int"), args=[number]):
                return number
        return value if isinstance(value, ast.Constant | ast.UnaryOp | ast.BinOp) else None

    def _top_level(self, body: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in body:
            yield node
            if isinstance(node, ast.If):  # TYPE_CHECKING
                yield from self._top_level(node.body)

    def _add(self, node: ast.stmt) -> None:
        match node:
            case ast.ImportFrom(module=str(module)):
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


def tidy(text: str) -> str:
    """Python as ruff formats it."""
    return _ruff(text, "format", "--quiet")


def _ruff(text: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", "text.py", "-"]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60
    )
    if done.returncode != 0:
        raise RuntimeError(f"ruff rejects the text: {done.stderr}\n{text}")
    return done.stdout
