"""Jinja templates whose work is counted, so that a limit means the same on every machine.

A *step* is one node of the template, evaluated once. Loops, macros and blocks are what makes a short template work for
long: each run of such a body costs as many steps as the body has nodes. That is cheap enough to count always.

With ``weighs_values`` the values count as well: an operator, a comparison, a filter, a test or a call costs a step for
each item and each CHARS_PER_STEP characters that it reads or makes, and more where it works harder than copying. That
makes a template several times slower, so only the check of a submission does it. Nested values are walked as
the operation itself would walk them, a shared list as often as it is shared; the walk ends with the steps.

Not counted is what one operation costs beyond its values: a text of 100 MB is made before it is weighed. The memory and
the CPU time of the process end that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from jinja2 import Template, nodes, pass_context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import generate_lorem_ipsum
from jinja2.visitor import NodeTransformer

N = TypeVar("N", bound=nodes.Node)
Body = TypeVar("Body", nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)

CHECK_STEPS = 500_000  # for 51 messages, values weighed; Llama 3's template takes 5,000
MAX_SOURCE_CHARS = 200_000
MAX_NODES = 20_000  # which take about 2 s to compile
CHARS_PER_STEP = 32
BITS_PER_STEP = 4_096  # of the product of two integers' lengths
WITHOUT_END = 2**62
TICK, WEIGH_DEEP, WEIGH_MADE = "count steps", "weigh what is read", "weigh what is made"
"""Names of filters that no template can write."""

CONSTANT_TIME_FILTERS = frozenset(
    {"length", "count", "first", "last", "default", "d", "attr", "items", "safe"}
)
CONSTANT_TIME_TESTS = frozenset(
    {
        "defined", "undefined", "none", "string", "mapping", "number", "integer", "float", "boolean", "true", "false",
        "sequence", "iterable", "callable", "sameas", "filter", "test",
    }
)  # fmt: skip
OVER_CHARACTERS = frozenset(
    {
        "list", "join", "sort", "unique", "groupby", "min", "max", "batch", "slice", "sum", "random", "map", "select",
        "reject",
    }
)  # fmt: skip
"""They take a text apart into its characters."""
FACTORS = {
    "sort": 16, "unique": 16, "groupby": 16, "dictsort": 16, "min": 4, "max": 4, "pprint": 256, "urlize": 64,
    "title": 32, "wordcount": 32, "tojson": 8, "xmlattr": 16, "escape": 4, "e": 4, "forceescape": 4, "indent": 4,
}  # fmt: skip
QUADRATIC = frozenset({"sum", "striptags", "wordwrap"})


class StepLimitExceeded(Exception):
    """The template has used all its steps."""


class Meter:
    """Counts down the steps that a template has left."""

    def __init__(self) -> None:
        self.left = WITHOUT_END

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise StepLimitExceeded

    def weigh(self, value: Any) -> int:
        """Spend what it costs to read a value with all that it holds; the steps."""
        before, waiting = self.left, [value]
        while waiting:
            one = waiting.pop()
            self.spend(_own_size(one))
            if isinstance(one, dict):
                waiting += one
                waiting += one.values()
            elif isinstance(one, list | tuple | set | frozenset):
                waiting += one
        return before - self.left

    def weigh_made(self, value: Any) -> Any:
        """Spend what it costs to make a value of known parts; the value, counted item by item if it is an iterator."""
        if isinstance(value, Iterator):
            return self._counted(value)
        is_container = isinstance(value, list | tuple | set | frozenset | dict)
        self.spend(len(value) if is_container else _own_size(value))
        return value

    def _counted(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.spend(_own_size(item))
            yield item


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """The immutable sandbox, whose templates spend the steps of ``meter``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.meter = meter = Meter()
        self.weighs_values = False

        @pass_context
        def tick(_context: Any, steps: int) -> bool:
            meter.left = left = meter.left - steps  # without a call: this is in every loop
            if left < 0:
                raise StepLimitExceeded
            return True

        self.filters[TICK] = tick

    def weigh_values(self) -> None:
        """Count the values too, from now on; after every filter and test has been set."""
        self.weighs_values = True
        meter = self.meter

        @pass_context
        def weigh_read(_context: Any, value: Any) -> Any:
            meter.weigh(value)
            return value

        @pass_context
        def weigh_made(_context: Any, value: Any) -> Any:
            return meter.weigh_made(value)

        self.intercepted_binops = frozenset(self.default_binop_table)
        tables: tuple[tuple[dict[str, Any], frozenset[str]], ...] = (
            (self.filters, CONSTANT_TIME_FILTERS | {TICK}),
            (self.tests, CONSTANT_TIME_TESTS),
        )
        for table, quick in tables:
            slow = [name for name in table if name not in quick]
            table.update({name: self._weighing(name, table[name]) for name in slow})
        self.filters |= {WEIGH_DEEP: weigh_read, WEIGH_MADE: weigh_made}
        self.finalize = weigh_read  # what is written
        if "lipsum" in self.globals:
            self.globals["lipsum"] = self._lipsum(generate_lorem_ipsum)

    def metered(self, source: str) -> Template:
        """Return the compiled template. Raises jinja2.TemplateSyntaxError; ValueError for a template that is too long."""
        if len(source) > MAX_SOURCE_CHARS:
            raise ValueError(f"it is longer than {MAX_SOURCE_CHARS:,} characters")
        tree = self.parse(source)
        if _steps(tree) > MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES:,} parts")
        return self.from_string(_Metering(self).visit(tree))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        if not __self.weighs_values:
            return super().call(__context, __obj, *args, **kwargs)
        __self.meter.weigh((getattr(__obj, "__self__", None), args, kwargs))
        return __self.meter.weigh_made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            self.meter.spend(_integer_steps(operator, left, right))
        elif operator == "*":
            times, item = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(times, int) and isinstance(item, str | bytes | list | tuple):
                each = CHARS_PER_STEP if isinstance(item, str | bytes) else 1
                self.meter.spend(1 + len(item) * max(0, times) // each)
        elif operator == "%":
            self.meter.weigh((left, right))
        else:
            self.meter.weigh_made(left)
            self.meter.weigh_made(right)
        return self.meter.weigh_made(super().call_binop(context, operator, left, right))

    def _weighing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        meter = self.meter
        factor, is_quadratic = FACTORS.get(name, 1), name in QUADRATIC

        @wraps(function)
        def weighing(*args: Any, **kwargs: Any) -> Any:
            if is_quadratic:
                args = tuple(list(one) if isinstance(one, Iterator) else one for one in args)
            steps = meter.weigh((args, kwargs))
            if name in OVER_CHARACTERS:
                steps += sum(len(text) for text in args if isinstance(text, str))
            extra = steps * steps // CHARS_PER_STEP if is_quadratic else steps * factor
            if name == "round":
                extra += sum(abs(one) for one in (*args[1:], *kwargs.values()) if type(one) is int)
            meter.spend(extra)
            return meter.weigh_made(function(*args, **kwargs))

        return weighing

    def _lipsum(self, lipsum: Callable[..., Any]) -> Callable[..., Any]:
        def counted(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> Any:
            self.meter.spend(8 * abs(n) * abs(max))
            return lipsum(n, html, min, max)

        return counted


class _Metering(NodeTransformer):
    """Rewrites a parsed template so that it counts."""

    def __init__(self, environment: MeteredEnvironment) -> None:
        self._environment = environment
        self._weighs = environment.weighs_values

    def visit_For(self, node: nodes.For) -> nodes.Node:
        steps = _steps(node)
        self.generic_visit(node)
        if node.test is not None:
            node.test = self._new(nodes.And(self._tick(steps), node.test), node)
        return self._with_tick(node, steps)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._with_tick(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._with_tick(node)

    def visit_Block(self, node: nodes.Block) -> nodes.Node:
        return self._with_tick(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [self._weighed(one, WEIGH_DEEP) for one in node.nodes]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._weighed(node.expr, WEIGH_DEEP)
        for operand in node.ops:
            operand.expr = self._weighed(operand.expr, WEIGH_DEEP)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return self._weighed(node, WEIGH_MADE) if isinstance(node.arg, nodes.Slice) else node

    def _with_tick(self, node: Body, steps: int | None = None) -> Body:
        if steps is None:
            steps = _steps(node)
            self.generic_visit(node)
        node.body.insert(0, self._new(nodes.ExprStmt(self._tick(steps)), node))
        return node

    def _tick(self, steps: int) -> nodes.Expr:
        return nodes.Filter(nodes.Const(steps), TICK, [], [], None, None)

    def _weighed(self, node: nodes.Expr, how: str) -> nodes.Expr:
        if not self._weighs:
            return node
        return self._new(nodes.Filter(node, how, [], [], None, None), node)

    def _new(self, made: N, near: nodes.Node) -> N:
        made.set_lineno(near.lineno)
        made.set_environment(self._environment)
        return made


def _steps(node: nodes.Node) -> int:
    """Return the steps that it takes to run everything in a node once."""
    steps = 1
    waiting = [node]
    while waiting:
        one = waiting.pop()
        steps += 1 + (len(one.data) // CHARS_PER_STEP if isinstance(one, nodes.TemplateData) else 0)
        waiting += one.iter_child_nodes()
    return steps


def _own_size(value: Any) -> int:
    if isinstance(value, str | bytes):
        return 1 + len(value) // CHARS_PER_STEP
    if isinstance(value, int):
        return 1 + value.bit_length() // CHARS_PER_STEP
    return 1 + (len(value) if isinstance(value, range) else 0)


def _integer_steps(operator: str, left: int, right: int) -> int:
    bits = left.bit_length() * (max(0, right) if operator == "**" else right.bit_length())
    return 1 + (bits * bits if operator == "**" else bits) // BITS_PER_STEP
