"""The classes of errors of a package: the tree that its docstring draws, the real one, and the sentences."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from types import ModuleType

from tests.daemon import ROOT

PACKAGES = ("cli", "dispatch", "ingest", "pipeline", "router", "spool", "status")


def drawn_tree(module: ModuleType) -> dict[str, str]:
    """Each class in the docstring of `module`, and the class under which the indentation puts it."""
    tree, above = dict[str, str](), [(0, Exception.__name__)]
    for line in inspect.cleandoc(module.__doc__ or "").splitlines():
        indent, words = len(line) - len(line.lstrip()), line.split()
        # Sentences begin at the margin.
        if not indent or not inspect.isclass(getattr(module, words[0], None)):
            continue
        while above[-1][0] >= indent:
            above.pop()
        tree[words[0]] = above[-1][1]
        above.append((indent, words[0]))
    return tree


def real_tree(module: ModuleType) -> dict[str, str]:
    """Each error that `module` defines, and its first base."""
    return {
        name: kind.__mro__[1].__name__
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, Exception) and kind.__module__ == module.__name__
    }


def unsaid(module: ModuleType) -> list[str]:
    """The places that raise an error of `module` without words, with more lines, or with a full stop."""
    return [
        f"{path}:{line}" for path, line, texts in _raised(module) if not texts or any(map(_is_odd, texts))
    ]


def _is_odd(text: str) -> bool:
    return "\n" in text or text.endswith(".") or not text.strip()


def _raised(module: ModuleType) -> Iterator[tuple[str, int, list[str]]]:
    """(file, line, texts without the values in them) of each such `raise`."""
    names = real_tree(module)
    for path, node in _raises():
        call = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if isinstance(call, ast.Name) and call.id in names:
            arguments = node.exc.args if isinstance(node.exc, ast.Call) else []
            yield path, node.lineno, [_text(one) for one in arguments]


@functools.cache
def _raises() -> list[tuple[str, ast.Raise]]:
    """(file, statement) of each in our packages."""
    files = sorted(one for package in PACKAGES for one in (ROOT / package).rglob("*.py"))
    return [
        (str(path.relative_to(ROOT)), node)
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise)
    ]


def _text(node: ast.expr) -> str:
    if not isinstance(node, ast.Constant | ast.JoinedStr):
        return "?"
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(one.value) if isinstance(one, ast.Constant) else "?" for one in parts)
