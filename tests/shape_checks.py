"""Run-time checks of annotated tensor shapes, switched on with `--jaxtyping-packages` (see the Makefile)."""

import functools
import types

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintException


def check(function):
    """Check the tensors among arguments and results; other values are the code's own to refuse."""
    if not isinstance(function, types.FunctionType):
        return function
    shaped = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    shaped.__kwdefaults__ = function.__kwdefaults__
    shaped.__qualname__, shaped.__module__ = function.__qualname__, function.__module__
    shaped.__annotations__ = {k: hint for k, hint in function.__annotations__.items() if _is_shaped(hint)}
    try:
        checked = beartype(shaped, conf=BeartypeConf(is_pep484_tower=True))
    except BeartypeDecorHintException:
        return function
    return functools.wraps(function)(checked)


def _is_shaped(hint) -> bool:
    return any(f"[{array}," in str(hint) for array in ("Tensor", "np.ndarray", "ndarray", "torch.Tensor"))
