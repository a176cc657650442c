"""One operation = one plain-torch reference that defines it, and faster implementations beside it.

An implementation is chosen once, when a model is built, from static facts; the number of tokens is
never one of them. Knows nothing of any particular operation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from deepinfer.errors import NoImplementation

REFERENCE = "reference"


def _always(**_facts: object) -> str | None:
    return None


def _as_is(weights: Any) -> Any:
    return weights


def _no_workspace(**_sizes: Any) -> int:
    return 0


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operation, with what it claims.

    Attributes:
        name: unique within its operation; "reference" is reserved.
        run: same parameters as the reference.
        refuses: called with the static facts; None if it serves, else the reason why not.
        pack: turns stored weights into the form that `run` wants, once at load.
        workspace: called with `arch` (an `Arch`), `tokens` of a step and `longest`, tokens of its
            longest request; the most bytes of scratch memory of a call beside what it returns, if
            that is much or does not grow with the tokens.
        batch_invariant: a row's bits do not depend on the other rows.
        graph_safe: no host synchronisation; what it enqueues depends on nothing but input shapes
            and, of a `Batch`, its host fields.
        order_class: two implementations of one class give equal bits.
    """

    name: str
    run: Callable[..., Any]
    refuses: Callable[..., str | None] = _always
    pack: Callable[[Any], Any] = _as_is
    workspace: Callable[..., int] = _no_workspace
    batch_invariant: bool = False
    graph_safe: bool = False
    order_class: str = ""


@dataclass(frozen=True)
class Bound:
    """An operation with its chosen implementation; calling it runs that."""

    op: str
    implementation: Implementation
    reason: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the implementation; parameters are those of the reference."""
        return self.implementation.run(*args, **kwargs)

    def pack(self, weights: Any) -> Any:
        """Stored weights in the form that the implementation wants.

        Raises:
            NoImplementation: it cannot hold these weights; another one may.
        """
        try:
            return self.implementation.pack(weights)
        except ValueError as error:
            raise NoImplementation(
                f"{self.op}: {self.implementation.name} cannot hold these weights ({error}); "
                f"name another implementation, such as --op {self.op}={REFERENCE}"
            ) from error


@dataclass
class Op:
    """An operation: its reference and, best first, its other implementations.

    `graph_safe` is a claim of the reference, see `Implementation`.
    """

    reference: Callable[..., Any]
    name: str = ""
    implementations: list[Implementation] = field(default_factory=list)
    graph_safe: bool = True

    def __post_init__(self) -> None:
        self.name = self.name or self.reference.__name__
        self._reference = Implementation(
            REFERENCE,
            self.reference,
            batch_invariant=True,
            graph_safe=self.graph_safe,
            order_class=REFERENCE,
        )

    def add(self, implementation: Implementation) -> None:
        """Register an implementation behind the ones already there.

        Raises:
            ValueError: its name is taken, or its parameters differ from the reference's.
        """
        names = [REFERENCE, *(i.name for i in self.implementations)]
        if implementation.name in names:
            raise ValueError(f"{self.name}: implementation {implementation.name!r} exists already")
        wanted = list(inspect.signature(self.reference).parameters)
        found = list(inspect.signature(implementation.run).parameters)
        if wanted != found:
            raise ValueError(
                f"{self.name}: {implementation.name!r} takes {found}, the reference {wanted}"
            )
        self.implementations.append(implementation)

    def bind(self, prefer: str = "auto", **facts: object) -> Bound:
        """Choose an implementation for good.

        Args:
            prefer: "auto" (first that serves, the reference if none does), "reference", or a name.
            facts: static facts such as `arch="sm90"`, `hidden=5120`, `quantised=True`.

        Raises:
            NoImplementation: `prefer` names one that does not exist or does not serve.
        """
        if prefer == REFERENCE:
            return Bound(self.name, self._reference, "asked for")
        refusals: list[str] = []
        for implementation in self.implementations:
            if prefer not in ("auto", implementation.name):
                continue
            why_not = implementation.refuses(**facts)
            if why_not is None:
                reason = "asked for" if prefer != "auto" else "first that serves"
                return Bound(self.name, implementation, reason)
            refusals.append(f"{implementation.name}: {why_not}")
        if prefer == "auto":
            reason = "; ".join(refusals) or "no other implementation"
            return Bound(self.name, self._reference, reason)
        known = ", ".join([REFERENCE, *(i.name for i in self.implementations)])
        detail = "; ".join(refusals) or f"no such implementation, there are: {known}"
        raise NoImplementation(f"{self.name}: cannot use {prefer!r} ({detail})")


def lazy(
    op: Op,
    name: str,
    *,
    needs: str,
    run: str,
    refuses: str,
    pack: str,
    order_class: str,
    workspace: Callable[..., int] = _no_workspace,
) -> Implementation:
    """An implementation whose module is imported when it is first used, as its library is optional.

    It claims to be batch-invariant and graph-safe.

    Args:
        op: what it implements; its parameters are those of the reference.
        name: unique within the operation.
        needs: library that must be installed.
        run: "module:function", called with the parameters of the reference.
        refuses: "module:function", called with the static facts.
        pack: "module:function", called with stored weights.
        order_class: see `Implementation`.
        workspace: see `Implementation`.
    """

    def load(path: str) -> Callable[..., Any]:
        module, _, function = path.partition(":")
        return getattr(import_module(module), function)

    @functools.wraps(op.reference)
    def run_later(*args: Any, **kwargs: Any) -> Any:
        return load(run)(*args, **kwargs)

    def refuses_later(**facts: Any) -> str | None:
        if find_spec(needs) is None:
            return f"{needs} is not installed"
        return load(refuses)(**facts)

    return Implementation(
        name,
        run_later,
        refuses=refuses_later,
        pack=lambda weights: load(pack)(weights),
        workspace=workspace,
        batch_invariant=True,
        graph_safe=True,
        order_class=order_class,
    )
