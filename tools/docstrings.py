"""Docstrings from the source, without running it: of modules, and of the attributes of classes."""

from __future__ import annotations

import ast
from pathlib import Path


def of_module(path: Path) -> str:
    """The docstring of a module."""
    return ast.get_docstring(_parse(path)) or ""


def of_attributes(path: Path, class_name: str) -> dict[str, str]:
    """By attribute, in order, the string below it in the class; empty if there is none."""
    body = next(
        node.body for node in _parse(path).body if isinstance(node, ast.ClassDef) and node.name == class_name
    )
    found: dict[str, str] = {}
    name = ""
    for node in body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = ""
            case ast.Expr(value=ast.Constant(value=str(text))) if name:
                found[name] = text
    return found


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
