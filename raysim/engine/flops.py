"""Counts floating-point operations of whatever runs, by torch's own table of formulas."""

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class FlopCounter(TorchDispatchMode):
    """`with FlopCounter() as counter: …; counter.total`: 2 per multiply-add, matrix products and convolutions only.

    torch's FlopCounterMode also keeps the tally by module, through hooks that refuse `torch.autograd.grad`.
    """

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.total += formula(*args, **kwargs or {}, out_val=result)
        return result
