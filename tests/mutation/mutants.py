"""Mutants of a module: its syntax tree with one operator, constant or statement changed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "list"}
# Statements that a mutation may remove.
_REMOVABLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Continue, ast.Break, ast.Return)
Edit = Callable[[ast.AST], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. name: function, text of the line, and change; it does not depend on other lines."""

    line: int
    name: str
    _position: int
    _edit: Edit

    def tree(self, original: ast.Module) -> ast.Module:
        """The module's tree with the change."""
        tree = deepcopy(original)
        self._edit(list(ast.walk(tree))[self._position])
        return ast.fix_missing_locations(tree)


def mutants_of(source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    tree = ast.parse(source)
    lines = source.splitlines()
    skipped = {id(node) for left_out in _left_out(tree) for node in ast.walk(left_out)}
    owners = _owners(tree)
    found = []
    for position, node in enumerate(ast.walk(tree)):
        if id(node) in skipped:
            continue
        for line, change, edit in _changes(node):
            name = f"{owners.get(line, '<module>')}: {lines[line - 1].strip()} [{change}]"
            found.append(Mutant(line, name, position, edit))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.name))


def _changes(node: ast.AST) -> Iterator[tuple[int, str, Edit]]:
    """Line, description and edit of each change of one node."""
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                new = _COMPARISONS[type(operator)]
                yield node.lineno, f"{type(operator).__name__} -> {new.__name__} {place}", _set_item("ops", place, new)
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _OPERATORS:
            new_operator = _OPERATORS[type(node.op)]
            yield node.lineno, f"{type(node.op).__name__} -> {new_operator.__name__}", _set("op", new_operator)
        case ast.BoolOp():
            new_bool = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield node.lineno, f"-> {new_bool.__name__}", _set("op", new_bool)
        case ast.UnaryOp() if isinstance(node.op, ast.USub):
            yield node.lineno, "without -", _set("op", ast.UAdd)
        case ast.If() | ast.While() | ast.IfExp():
            yield node.test.lineno, "condition negated", _negate
        case ast.Constant() if isinstance(node.value, bool):
            yield node.lineno, f"{node.value} -> {not node.value}", _set_value(not node.value)
        case ast.Constant() if isinstance(node.value, int | float):
            yield node.lineno, f"{node.value} -> {node.value + 1}", _set_value(node.value + 1)
        case ast.Call() if isinstance(node.func, ast.Name) and node.func.id in _CALLS:
            yield node.lineno, f"{node.func.id} -> {_CALLS[node.func.id]}", _rename_call
    for field in ("body", "orelse"):
        statements = getattr(node, field, None)
        if not isinstance(statements, list) or isinstance(node, ast.Module | ast.ClassDef):
            continue
        for place, statement in enumerate(statements):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if isinstance(statement, _REMOVABLE) and not is_text:
                yield statement.lineno, "removed", _set_item(field, place, ast.Pass)


def _set(field: str, new: type[ast.AST]) -> Edit:
    return lambda node: setattr(node, field, new())


def _set_value(value: object) -> Edit:
    return lambda node: setattr(node, "value", value)


def _set_item(field: str, place: int, new: type[ast.AST]) -> Edit:
    def edit(node: ast.AST) -> None:
        getattr(node, field)[place] = new()

    return edit


def _negate(node: ast.AST) -> None:
    assert isinstance(node, ast.If | ast.While | ast.IfExp)
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _rename_call(node: ast.AST) -> None:
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    node.func.id = _CALLS[node.func.id]


def _left_out(tree: ast.Module) -> Iterator[ast.AST]:
    """Parts without behaviour to test: annotations, decorators, error messages, assertions, type checking."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from node.decorator_list
                if node.returns is not None:
                    yield node.returns
            case ast.ClassDef():
                yield from node.decorator_list
            case ast.arg() if node.annotation is not None:
                yield node.annotation
            case ast.AnnAssign():
                yield node.annotation
            case ast.Raise() | ast.Assert() | ast.JoinedStr():
                yield node
            case ast.keyword() if node.arg == "strict":  # of zip: an assertion
                yield node
            case ast.If() if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                yield node


def _owners(tree: ast.Module) -> dict[int, str]:
    """Name of the innermost function or class around each line."""
    owners: dict[int, str] = {}
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                owners[line] = node.name
    return owners
