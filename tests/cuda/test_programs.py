"""Every program of the list: compiled for both architectures, what ptxas says asserted, run on the shim against eager."""
import pytest

from programs import PROGRAMS
from proof import exact, needs_nvrtc, prove, summed, thin
from shim import ORDERS

pytestmark = needs_nvrtc


@pytest.mark.parametrize("program", thin(PROGRAMS, 8), ids=lambda p: p.name)
def test_program(program, full):
    prove(program.fn, *program.make(), whole=program.whole, close=exact if program.exact else summed,
          orders=tuple(ORDERS) if full else ("random",))
