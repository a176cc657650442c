"""Exception types of deepinfer, each with the person who is meant to handle it.

Knows nothing of the rest of the package.
"""


class DeepinferError(Exception):
    """Base of every error that deepinfer raises on purpose."""


class ConfigError(DeepinferError, ValueError):
    """A setting or a `config.json` value cannot be used. Handled by the operator."""


class CheckpointError(DeepinferError, ValueError):
    """A checkpoint directory is incomplete, damaged or of another shape. Handled by the operator.

    `problems` holds one sentence a fault; the message lists them all.
    """

    def __init__(self, where: str, problems: list[str]):
        self.where = where
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(f"{where}: {len(problems)} problem(s)\n{lines}")


class RequestError(DeepinferError, ValueError):
    """One request cannot be served; others go on. Handled by the user who sent it.

    `status` is the HTTP status a server answers with.
    """

    def __init__(self, message: str, status: int = 400):
        self.status = status
        super().__init__(message)


class NoImplementation(DeepinferError, LookupError):
    """A named implementation of an operation does not serve here. Handled by the operator."""


class NonFiniteError(DeepinferError, ArithmeticError):
    """Logits or weights hold NaN or infinity. Handled by the operator (damaged weights)."""
