"""Each function of floats, and a product after it, on 256 x 1024 numbers: what one kernel takes beside eager's two.

Nothing but the function matters here: the numbers stay in a cache of the second level, or nearly so.
"""
import torch
import torch.nn.functional as F

from timing import Row, compile_with_tracejit, in_units, interleaved

SHAPE = (256, 1024)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}
NAMES = """abs exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid
    sqrt rsqrt reciprocal floor round""".split()
ACTIVATIONS = "gelu silu mish softplus logsigmoid hardswish hardtanh leaky_relu softsign tanhshrink".split()
FUNCTIONS = {
    **{name: getattr(torch, name) for name in NAMES}, **{name: getattr(F, name) for name in ACTIVATIONS},
    "elu": lambda x: F.elu(x - 0.5), "selu": lambda x: F.selu(x - 0.5), "celu": lambda x: F.celu(x - 0.5),
    "x ** 1.5": lambda x: x ** 1.5, "x % 0.7": lambda x: x % 0.7, "x // 0.7": lambda x: x // 0.7,
    "fmod": lambda x: torch.fmod(x, 0.7), "atan2": lambda x: torch.atan2(x, 1 - x), "hypot": lambda x: torch.hypot(x, 1 - x),
    "copysign": lambda x: torch.copysign(x, x - 0.5), "logaddexp": lambda x: torch.logaddexp(x, -x),
    "softmax": lambda x: x.softmax(-1), "logsumexp": lambda x: x.logsumexp(-1),
}


def functions(opts):
    """Rows for each dtype; prints one line for each function."""
    print(f"\n{'function, then a product':26}" + "".join(f"{d + ' eager':>13}{'tracejit':>11}{'x eager':>9}" for d in DTYPES))
    rows = []
    for name, fn in FUNCTIONS.items():
        if opts.only in name:
            rows += [measured(f"{name} {d}", fn, dtype, opts) for d, dtype in DTYPES.items()]
            cells = "".join(f"{in_units(r.eager):>13}{in_units(r.tracejit):>11}{r.eager / r.tracejit:>9.2f}" for r in rows[-len(DTYPES):])
            print(f"{name:26}{cells}", flush=True)
    return rows


def measured(name, fn, dtype, opts):
    def program(x):
        return fn(x) * 0.5
    ways = [program, compile_with_tracejit(program)]
    x = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0)).to(dtype)
    close = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(ways[1](x), program(x), rtol=close, atol=close, equal_nan=True)
    return Row(name, *interleaved(ways, lambda: (x,), opts.samples, 1, opts.quantile))
