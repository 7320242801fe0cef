"""Whole models from `transformers` configurations (four layers, random weights, float32, no gradients), and new processes.

`first` is a first call with no kernel on disk, `again` one of a fresh jit that finds them; `work` is the processor time of `first`,
compilers included: on a machine that others use it says more than the clock.

    python scripts/bench_models.py MODEL KERNELS     one new process: seconds of import, jit and first call, over eager's
"""
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch

VOCABULARY, LENGTH = 1000, 128


# -- models ----------------------------------------------------------------------------------------

def tokens():
    return {"input_ids": (torch.arange(2 * LENGTH) * 7 % VOCABULARY).reshape(2, LENGTH)}


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=256, n_layer=4, n_head=4, use_cache=False)
    return GPT2LMHeadModel(config), tokens()


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=LENGTH, use_cache=False)
    return LlamaForCausalLM(config), tokens()


def bert():
    from transformers import BertConfig, BertModel
    config = BertConfig(vocab_size=VOCABULARY, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
                        max_position_embeddings=LENGTH)
    return BertModel(config), {**tokens(), "attention_mask": torch.ones(2, LENGTH, dtype=torch.int64)}


def resnet():
    from transformers import ResNetConfig, ResNetForImageClassification
    config = ResNetConfig(embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")
    return ResNetForImageClassification(config), {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 112 * 112).reshape(2, 3, 112, 112).sin()}


def t5():
    from transformers import T5Config, T5ForConditionalGeneration
    config = T5Config(vocab_size=VOCABULARY, d_model=256, d_kv=64, d_ff=1024, num_layers=4, num_heads=4, decoder_start_token_id=0,
                      pad_token_id=0, use_cache=False)
    return T5ForConditionalGeneration(config), {**tokens(), "decoder_input_ids": tokens()["input_ids"]}


def vit():
    from transformers import ViTConfig, ViTForImageClassification
    config = ViTConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, image_size=112, patch_size=8)
    return ViTForImageClassification(config), resnet()[1]


def three_ops():
    return lambda a, b: torch.relu(a + b) * b, {"a": torch.randn(64), "b": torch.randn(64)}


MODELS = {"GPT-2": gpt2, "Llama": llama, "BERT": bert, "ResNet-18": resnet}
TRAINED = {**MODELS, "T5": t5, "ViT": vit}
PROGRAMS = {"three ops": three_ops, **TRAINED}


def build(name):
    torch.manual_seed(0)
    fn, inputs = PROGRAMS[name]()
    return fn.eval() if isinstance(fn, torch.nn.Module) else fn, inputs


def without_names(fn, inputs):
    """(function of positional arguments, arguments): what the timers call."""
    return lambda *values: fn(**dict(zip(inputs, values))), tuple(inputs.values())


# -- in one process --------------------------------------------------------------------------------

@dataclass(frozen=True)
class Measured:
    """Seconds of one model; `fused`, `alone`: regions and other calls of the program."""
    name: str
    eager: float
    tracejit: float
    first: float
    work: float
    again: float
    fused: int
    alone: int
    inductor: Optional[float] = None
    inductor_first: Optional[float] = None


def processor_seconds():
    """Of this process and of the compilers that it has run."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def check(name, jitted, fn, inputs):
    for (key, a), b in zip(jitted(**inputs).items(), fn(**inputs).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=lambda m: f"{name} {key}: {m}")


def measure(name, opts):
    from timing import compile_with_inductor, compile_with_tracejit, seconds, take_turns
    fn, inputs = build(name)
    ways = [fn]
    with tempfile.TemporaryDirectory() as kernels:
        firsts = []
        for _ in range(2):                                     # the second finds the kernels of the first
            ways[1:] = [compile_with_tracejit(fn, kernels)]
            before = processor_seconds()
            firsts += [seconds(*without_names(ways[1], inputs)), processor_seconds() - before]
        check(name, ways[1], fn, inputs)
    final, inductor_first = ways[1].last_traces[-1], None
    if opts.inductor:
        ways.append(compile_with_inductor(fn))
        inductor_first = seconds(*without_names(ways[-1], inputs))
    runs = [without_names(way, inputs) for way in ways]
    for run in runs:
        seconds(*run, 3)
    taken = take_turns(runs, opts.samples, 2, opts.quantile)
    return Measured(name, *taken[:2], *firsts[:3], len(final.regions), len(final.bound_symbols) - len(final.regions),
                    *(taken[2:] or [None]), inductor_first)


def models(opts):
    from timing import in_units
    heads = ["eager", "inductor", "tracejit", "x eager", "x inductor", "regions", "others", "first", "work", "again", "inductor's"]
    print(f"\n{'whole model, forward':32}" + "".join(f"{head:>11}" for head in heads))
    rows = []
    for name in MODELS:
        if opts.only not in name:
            continue
        rows.append(m := measure(name, opts))
        known = m.inductor is not None
        cells = [in_units(m.eager), in_units(m.inductor) if known else "-", in_units(m.tracejit), f"{m.eager / m.tracejit:.2f}",
                 f"{m.inductor / m.tracejit:.2f}" if known else "-", m.fused, m.alone, in_units(m.first), in_units(m.work), in_units(m.again),
                 in_units(m.inductor_first) if known else "-"]
        print(f"{m.name:32}" + "".join(f"{cell:>11}" for cell in cells), flush=True)
    return rows


# -- new processes ---------------------------------------------------------------------------------

PROCESSES = ("nothing on disk", "kernels anew", "all on disk")         # what a new process finds of the compiler's files


@dataclass(frozen=True)
class Process:
    """Seconds that a new process spends on `import tracejit`, jit and the first call, beyond a call of eager's: (clock, processor)
    for each of PROCESSES."""
    name: str
    seconds: tuple


def added_seconds(name, home, kernels):
    """Of a new process: what tracejit adds to `import torch` and the eager call, on the clock and in processor time.

    home: where it keeps what is compiled once for a machine, and Python's compiled modules; kernels: those of the program.
    """
    environment = {**os.environ, "XDG_CACHE_HOME": home, "PYTHONPYCACHEPREFIX": f"{home}/python"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run([sys.executable, __file__, name, kernels], capture_output=True, text=True, check=True, env=environment)
    return tuple(float(value) for value in done.stdout.split()[-2:])


def processes(opts):
    from timing import in_units
    print(f"\n{'new process: import, jit, first call, over eager':50}" + "".join(f"{which:>24}" for which in PROCESSES))
    print(" " * 50 + f"{'clock':>12}{'processor':>12}" * len(PROCESSES))
    rows = []
    for name in PROGRAMS:
        taken = []
        with tempfile.TemporaryDirectory() as home:
            added_seconds(name, home, home)                    # Python compiles the modules
            for n in range(5 if name == "three ops" else 1):
                shutil.rmtree(f"{home}/tracejit")
                taken.append([added_seconds(name, home, f"{home}/{n}"), added_seconds(name, home, f"{home}/{n} anew"),
                              added_seconds(name, home, f"{home}/{n} anew")])
        rows.append(Process(name, tuple(tuple(map(statistics.median, zip(*column))) for column in zip(*taken))))
        print(f"  {name:48}" + "".join(f"{in_units(t):>12}" for column in rows[-1].seconds for t in column), flush=True)
    return rows


def new_process(name, kernels):
    fn, inputs = build(name)
    with torch.no_grad():
        fn(**inputs)
        start = time.perf_counter()
        fn(**inputs)
        eager = time.perf_counter() - start
        start, work = time.perf_counter(), processor_seconds()
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        import tracejit
        jitted = tracejit.jit(fn, executors=["cpu"], executor_options={"cpu": {"kernel_cache": kernels}}, fallback="error")
        jitted(**inputs)
        print(time.perf_counter() - start - eager, processor_seconds() - work - eager)


if __name__ == "__main__":
    new_process(*sys.argv[1:])
