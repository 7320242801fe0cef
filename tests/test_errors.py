"""Bad input: the error says what and where, is the one that eager raises, and nothing was touched before it."""
import contextlib
import sys
import threading
import traceback
import warnings

import pytest
import torch

import tracejit

from cases.parity import assert_parity

FALLBACKS = ["warn", "error", "silent"]


def x3():
    return torch.tensor([1.0, 2.0, 3.0])


def line_of(fn, text):
    """The line number in this file of the line of `fn` that contains `text`."""
    import inspect
    lines, first = inspect.getsourcelines(fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


# ------------------------------------------------------------------ options

@pytest.mark.parametrize("option", ["fulgraph", "mode", "dynamics", "fallbak"])
def test_unknown_option_is_named(option):
    with pytest.raises(TypeError, match=option):
        tracejit.jit(lambda x: x, **{option: True})


@pytest.mark.parametrize("options", [{"fallback": "never"}, {"numerics": "sloppy"}])
def test_unknown_value_of_an_option_is_named(options):
    (name, value), = options.items()
    with pytest.raises((TypeError, ValueError), match=value) as info:
        tracejit.jit(lambda x: x, **options)
    assert name in str(info.value)


@pytest.mark.parametrize("thing", [3, [], "text", torch.ones(3)])
def test_what_cannot_be_called_is_refused(thing):
    with pytest.raises(TypeError):
        tracejit.jit(thing, fallback="error")


@pytest.mark.parametrize("executors", [["no_such_executor"], [3], [object()]])
def test_wrong_executor_is_a_trace_error(executors):
    with pytest.raises(tracejit.TraceError, match="(?i)executor"):
        tracejit.jit(lambda x: x + 1, executors=executors)(x3())


@pytest.mark.parametrize("result", [None, 3, "a trace"])
def test_transform_that_returns_no_trace_is_a_trace_error(result):
    def careless_transform(trace):
        return result

    with pytest.raises(tracejit.TraceError, match="careless_transform"):
        tracejit.jit(lambda x: x + 1, transforms=(careless_transform,))(x3())


def test_transform_that_returns_its_trace_changes_nothing():
    jfn = tracejit.jit(lambda x: x.add_(1) * 2, transforms=(lambda trace: trace,), fallback="error")
    x = x3()
    assert torch.equal(jfn(x), (x3() + 1) * 2) and torch.equal(x, x3() + 1)


def test_usable_as_a_decorator_with_and_without_options():
    @tracejit.jit
    def plain(x):
        """Doubles."""
        return x * 2

    @tracejit.jit(fallback="error")
    def strict(x):
        return x * 3

    assert torch.equal(plain(x3()), x3() * 2) and torch.equal(strict(x3()), x3() * 3)
    assert plain.__name__ == "plain" and plain.__doc__ == "Doubles."


# ------------------------------------------------------------------ the user's own errors

class OwnError(ValueError):
    pass


def wrong_shapes(x):
    return x + torch.ones(4)  # here


def own_error(x):
    raise OwnError("own")  # here


def in_a_helper(x):
    return wrong_shapes(x) * 2


def bad_index(x):
    return x[torch.tensor([7])]  # here


def bad_attribute(x):
    return x.no_such_method()  # here


def wrong_type(x):
    return torch.add(x, "text")  # here


def bad_cast(x):
    i = torch.ones(3, dtype=torch.int64)
    return i.mul_(x)  # here


def division_by_zero(x):
    return torch.ones(3, dtype=torch.int64) // x.to(torch.int64).sub(1).sign()  # here


def singular(x):
    return torch.linalg.inv(torch.zeros(3, 3) * x)  # here


def assertion(x):
    assert x.shape[0] == 4, "four"  # here
    return x


RAISING = [(wrong_shapes, wrong_shapes), (own_error, own_error), (in_a_helper, wrong_shapes), (bad_index, bad_index),
           (bad_attribute, bad_attribute), (wrong_type, wrong_type), (bad_cast, bad_cast),
           (division_by_zero, division_by_zero), (singular, singular), (assertion, assertion)]


def error_of(fn, *args):
    with pytest.raises(Exception) as info:  # noqa: B017
        fn(*args)
    return info.value


@pytest.mark.parametrize("fallback", FALLBACKS)
@pytest.mark.parametrize("fn, culprit", RAISING, ids=[fn.__name__ for fn, _ in RAISING])
def test_error_is_eagers_with_the_users_line(fn, culprit, fallback):
    jfn = tracejit.jit(fn, fallback=fallback)
    want = error_of(fn, x3())
    for _ in range(2):
        got = error_of(jfn, x3())
        assert type(got) is type(want)
        assert str(got).split("\n")[0] == str(want).split("\n")[0]
        frames = traceback.extract_tb(got.__traceback__)
        assert any(f.filename == __file__ and f.lineno == line_of(culprit, "# here") for f in frames), frames


@pytest.mark.parametrize("fn, culprit", RAISING, ids=[fn.__name__ for fn, _ in RAISING])
def test_traceback_shows_no_frame_of_ours(fn, culprit):
    frames = traceback.extract_tb(error_of(tracejit.jit(fn, fallback="warn"), x3()).__traceback__)
    package = tracejit.__file__.rsplit("/", 1)[0]
    ours = [f for f in frames if f.filename.startswith(package)]
    assert len(ours) <= (sys.version_info < (3, 11)), ours       # 3.10 always adds the frame that raises again


def test_error_leaves_no_entry_and_a_good_call_works_afterwards():
    def program(x, y):
        x.add_(1)
        return x + y

    jfn = tracejit.jit(program, fallback="error")
    x = x3()
    with pytest.raises(RuntimeError):
        jfn(x, torch.ones(4))
    assert torch.equal(x, x3() + 1), "eager writes before it raises"
    assert torch.equal(jfn(x3(), torch.ones(3)), x3() + 2)


def test_wrong_number_of_arguments():
    jfn = tracejit.jit(lambda x, y: x + y, fallback="error")
    for args, kwargs in [((x3(),), {}), ((x3(), x3(), x3()), {}), ((x3(), x3()), {"z": 1})]:
        with pytest.raises(TypeError):
            jfn(*args, **kwargs)


# ------------------------------------------------------------------ order of errors and writes

def error_before_the_write(x, y):
    z = x + y
    x.add_(1)
    return z


def error_after_the_write(x, y):
    x.add_(1)
    z = x + y
    x.mul_(2)
    return z


def index_error_between_writes(x, i):
    x.add_(1)
    y = x[i]
    x.mul_(2)
    return y


@pytest.mark.parametrize("fn, bad, good", [
    (error_before_the_write, torch.ones(4), torch.ones(3)),
    (error_after_the_write, torch.ones(4), torch.ones(3)),
    (index_error_between_writes, torch.tensor([9]), torch.tensor([1])),
], ids=lambda p: getattr(p, "__name__", ""))
def test_only_what_eager_writes_is_written_before_an_error(fn, bad, good):
    assert_parity(fn, lambda: [x3(), bad], raises=type(error_of(fn, x3(), bad)).__name__)

    def make():
        return [[x3(), good], [x3(), bad], [x3(), good]]

    jfn = tracejit.jit(fn, fallback="error")
    for mine, theirs in zip(make(), make(), strict=True):
        results = []
        for f, args in ((fn, mine), (jfn, theirs)):
            with contextlib.suppress(RuntimeError, IndexError):
                results.append(f(*args))
        assert len(results) in (0, 2)
        assert torch.equal(mine[0], theirs[0])


def test_division_by_zero_after_a_write():
    def program(x, d):
        x.add_(1)
        y = x // d
        x.zero_()
        return y

    assert_parity(program, lambda: [torch.ones(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)],
                  raises="RuntimeError")


# ------------------------------------------------------------------ falling back

def branches_on_data(x):
    x.add_(1)
    torch.rand(1)
    if x.sum() > 3:  # branch
        return x * 2
    return x


def data_as_a_number(x):
    return [v * 2 for v in x.tolist()]  # branch


HOST_READS = [branches_on_data, data_as_a_number]


@pytest.mark.parametrize("fn", HOST_READS)
def test_fallback_warns_once_with_the_users_line(fn):
    jfn = tracejit.jit(fn, fallback="warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            jfn(x3())
    ours = [w for w in caught if issubclass(w.category, tracejit.FallbackWarning)]
    assert len(ours) == 1
    assert f"{__file__}:{line_of(fn, '# branch')}" in str(ours[0].message)
    assert jfn.cache_info().fallbacks == 3


def test_two_causes_are_two_warnings():
    def program(x, how):
        if how == "item":
            return x if x[0].item() > 5 else x * 2
        return x.nonzero()

    jfn = tracejit.jit(program)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for how in ("item", "nonzero", "item", "nonzero"):
            assert torch.equal(jfn(x3(), how), program(x3(), how))
    assert len([w for w in caught if issubclass(w.category, tracejit.FallbackWarning)]) == 2


@pytest.mark.parametrize("fn", HOST_READS)
def test_fallback_silent_says_nothing(fn):
    jfn = tracejit.jit(fn, fallback="silent")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = jfn(x3())
    want = fn(x3())
    assert torch.equal(torch.as_tensor(got), torch.as_tensor(want))


@pytest.mark.parametrize("fn", HOST_READS)
def test_fallback_error_raises_with_the_users_line_and_nothing_touched(fn):
    jfn = tracejit.jit(fn, fallback="error")
    x, rng = x3(), torch.get_rng_state()
    version = x._version
    for _ in range(2):
        with pytest.raises(tracejit.UnsupportedError) as info:
            jfn(x)
        assert f"{__file__}:{line_of(fn, '# branch')}" in str(info.value)
    assert torch.equal(x, x3()) and x._version == version
    assert torch.equal(rng, torch.get_rng_state())


def test_nothing_is_half_done_before_a_fallback():
    state = {"calls": 0, "log": [], "buffer": torch.zeros(3)}

    def program(x):
        state["calls"] += 1
        state["log"].append(1)
        state["buffer"].add_(1)
        x.mul_(2)
        noise = torch.rand(3)
        return x + noise if x.sum() > 0 else x

    jfn = tracejit.jit(program, fallback="silent")
    for call in range(1, 4):
        x = x3()
        torch.manual_seed(call)
        got = jfn(x)
        torch.manual_seed(call)
        assert torch.equal(got, x3() * 2 + torch.rand(3))
        assert torch.equal(x, x3() * 2)
        assert state["calls"] == len(state["log"]) == call
        assert torch.equal(state["buffer"], torch.full((3,), float(call)))


def test_no_warning_that_eager_does_not_give():
    jfn = tracejit.jit(lambda x: torch.var_mean(x, 1), fallback="error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jfn(torch.randn(4, 8))


def test_unsupported_error_is_a_trace_error():
    assert issubclass(tracejit.UnsupportedError, tracejit.TraceError)
    assert issubclass(tracejit.FallbackWarning, Warning)


def test_global_modes_are_restored_after_an_error_in_the_program():
    def program(x):
        with torch.no_grad():
            return x + torch.ones(4)

    jfn = tracejit.jit(program, fallback="error")
    with pytest.raises(RuntimeError):
        jfn(x3())
    assert torch.is_grad_enabled()
    assert type(x3() * 2) is torch.Tensor
    assert not torch.overrides._get_current_function_mode_stack()


# ------------------------------------------------------------------ threads

def test_eight_threads_call_one_jitted_function():
    def program(x, n):
        y = x * n
        y[0] = 5
        x.add_(1)
        return y + x

    jfn = tracejit.jit(program, fallback="error")
    failures, start = [], threading.Barrier(8)

    def work(which):
        start.wait()
        for i in range(30):
            size, n = 3 + (i + which) % 4, (i * which) % 3
            mine, theirs = torch.arange(float(size)), torch.arange(float(size))
            try:
                want, got = program(mine, n), jfn(theirs, n)
            except Exception as e:  # reported by the main thread
                failures.append(f"thread {which}, call {i}: {type(e).__name__}: {e}")
                return
            if not (torch.equal(want, got) and torch.equal(mine, theirs)):
                failures.append(f"thread {which}, call {i}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]
    assert jfn.cache_info().entries <= 12


def test_a_capture_in_one_thread_does_not_see_the_ops_of_another():
    stop = threading.Event()
    wrong = []

    def background():
        x = torch.ones(3)
        while not stop.is_set():
            x = (x * 1.0).clone()
            if type(x) is not torch.Tensor or x.tolist() != [1.0] * 3:
                wrong.append(x)

    thread = threading.Thread(target=background)
    thread.start()
    try:
        for i in range(20):
            jfn = tracejit.jit(lambda x, i=i: x.add_(i) * 2, fallback="error")
            assert torch.equal(jfn(x3()), (x3() + i) * 2)
    finally:
        stop.set()
        thread.join()
    assert not wrong


def test_no_error_is_its_own_cause():
    @tracejit.jit(fallback="error")
    def f(x):
        return x + 1 if x.sum().item() > 0 else x
    with pytest.raises(tracejit.UnsupportedError) as caught:
        f(torch.ones(3))
    error, seen = caught.value, []
    while error is not None:
        assert error not in seen
        seen.append(error)
        error = error.__cause__
