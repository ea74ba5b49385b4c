"""Does the code keep its size budget: short functions, small modules, no import cycles?"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from tests.architecture.source import PRODUCT, Module, modules

LONGEST, MEDIAN, NINE_IN_TEN, MODULE = 60, 7, 31, 400
"""Lines: a function, the median function, nine functions in ten, a module."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """A function and its lines, from `def` to its end without the docstring."""

    where: str
    lines: int


@dataclass(frozen=True)
class Report:
    """What was measured."""

    functions: list[Function]
    modules: dict[str, int]
    """Lines of each product module."""
    test_lines: int
    cycle: list[str]
    """The names of modules that import each other in a circle; empty when none do."""

    @property
    def median(self) -> float:
        """Lines of the middle function."""
        return statistics.median(f.lines for f in self.functions)

    @property
    def ninth_decile(self) -> float:
        """Lines that nine functions in ten do not exceed."""
        return statistics.quantiles((f.lines for f in self.functions), n=10, method="inclusive")[8]

    @property
    def longest(self) -> Function:
        """The longest function."""
        return max(self.functions, key=lambda f: f.lines)

    def lines(self) -> Iterator[str]:
        """The report for people."""
        product = sum(self.modules.values())
        biggest = max(self.modules, key=lambda name: self.modules[name])
        yield f"functions  {len(self.functions)}: median {self.median:g}, nine in ten up to {self.ninth_decile:g},"
        yield f"           longest {self.longest.lines} ({self.longest.where})"
        yield f"modules    {len(self.modules)}: longest {self.modules[biggest]} ({biggest})"
        yield f"tests      {self.test_lines} lines to {product} lines of code: {self.test_lines / product:.2f}"
        yield f"cycles     {' -> '.join(self.cycle) or 'none'}"

    def excesses(self) -> Iterator[str]:
        """A sentence for everything over the budget."""
        yield from (f"{f.where} has {f.lines} lines; at most {LONGEST}" for f in self.functions if f.lines > LONGEST)
        yield from (f"{name} has {n} lines; at most {MODULE}" for name, n in self.modules.items() if n > MODULE)
        if self.median > MEDIAN:
            yield f"the median function has {self.median:g} lines; at most {MEDIAN}"
        if self.ninth_decile > NINE_IN_TEN:
            yield f"nine in ten functions have up to {self.ninth_decile:g} lines; at most {NINE_IN_TEN}"
        if self.cycle:
            yield f"modules import each other in a circle: {' -> '.join(self.cycle)}"


def measure() -> Report:
    """Reads all source files."""
    product = list(modules(*PRODUCT))
    return Report(
        functions=[function for module in product for function in functions(module.tree, module.place)],
        modules={module.place: _line_count(module) for module in product},
        test_lines=sum(_line_count(module) for module in modules("tests")),
        cycle=find_cycle(imports(product)),
    )


def functions(tree: ast.AST, place: str) -> Iterator[Function]:
    """Every function of a module, methods and nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            yield Function(f"{place}:{node.lineno} {node.name}", _length(node))


def imports(product: Iterable[Module]) -> dict[str, set[str]]:
    """Which modules of the product each of them imports when it is loaded; imports for type checkers do not count."""
    known = {module.name: module for module in product}
    return {name: set(_imported(module, known)) - {name} for name, module in known.items()}


def find_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle of imports, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]
    return []


def _imported(module: Module, known: Mapping[str, Module]) -> Iterator[str]:
    for node in _run_at_import(module.tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            origin = _absolute(module, node)
            for alias in node.names:
                deeper = f"{origin}.{alias.name}"
                yield from (name for name in (deeper if deeper in known else origin,) if name in known)


def _run_at_import(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes outside functions and outside `if TYPE_CHECKING`."""
    for node in body:
        if isinstance(node, Definition) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            continue
        yield node
        yield from _run_at_import(ast.iter_child_nodes(node))


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    steps = node.level - 1 if module.is_package else node.level
    base = module.name.split(".")[: -steps or None]
    return ".".join([*base, *([node.module] if node.module else [])])


def _length(node: Definition) -> int:
    whole = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is None:
        return whole
    return max(1, whole - ((first.end_lineno or first.lineno) - first.lineno + 1))


def _line_count(module: Module) -> int:
    return len(module.text.splitlines())


def main() -> int:
    """Prints the report; 1 when something is over the budget."""
    report = measure()
    print(*report.lines(), sep="\n")
    excesses = list(report.excesses())
    print(*(f"over budget: {sentence}" for sentence in excesses), sep="\n", file=sys.stderr, end="\n" * bool(excesses))
    return 1 if excesses else 0


if __name__ == "__main__":
    sys.exit(main())
