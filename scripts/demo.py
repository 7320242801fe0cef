"""A character transformer learns the LICENSE of this repository, then decodes with an in-place KV cache.

The decode step runs eagerly and jitted, side by side.
Ends with status 1 when the two generated texts differ, or the two caches by more than rounding.
"""
import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F
from tqdm import tqdm

import tracejit
from char_model import CharTransformer

TEXT = Path(__file__).resolve().parents[1] / "LICENSE"
PROMPT = "2. Grant of Copyright License."
ROUNDING = 1e-4                 # of the largest number in a cache


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="of training")
    parser.add_argument("--characters", type=int, default=200, help="to decode")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and batches")
    parser.add_argument("--lines", type=int, default=40, help="of the final trace to print")
    return parser.parse_args()


def train(model, data, steps, batch=16, length=96):
    """Plain eager training on random windows of the text, until the model knows it nearly by heart."""
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=steps)
    windows = data.unfold(0, length + 1, 1)
    progress = tqdm(range(steps), desc="training", unit="step")
    for _ in progress:
        chosen = windows[torch.randint(len(windows), (batch,))]
        scores = model(chosen[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), chosen[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)


class Decoder:
    """One decoding run: a step function, its own cache and position, and the time each step took."""

    def __init__(self, step, cache):
        self.step, self.cache, self.pos = step, cache, torch.zeros(1, dtype=torch.int64)
        self.tokens, self.seconds = [], []

    def advance(self, token):
        token = torch.tensor([[token]])
        start = time.perf_counter()
        following = self.step(token, self.pos, self.cache)
        self.seconds.append(time.perf_counter() - start)
        self.tokens.append(following.item())


@torch.no_grad()
def decode(runs, prompt, characters):
    """Feeds the prompt, then each run its own last character; the runs take turns at going first."""
    for i in tqdm(range(len(prompt) + characters - 1), desc="decoding", unit="char"):
        for run in runs if i % 2 else reversed(runs):
            run.advance(prompt[i] if i < len(prompt) else run.tokens[-1])


def show_trace(jitted, lines):
    print("\nStages of the trace, first recording to final program:")
    print(f"    {'stage':20}{'ops':>6}{'copy_':>7}")
    for trace in jitted.last_traces:
        print(f"    {trace.stage:20}{len(trace.bound_symbols):6}{trace.count('copy_'):7}")
    show_kernels(jitted.last_traces[-1])
    text = str(jitted.last_traces[-1]).splitlines()
    body = text[next(i for i, line in enumerate(text) if line.startswith("def ")):]  # after the list of inputs
    print(f"\nThe final trace ({min(lines, len(body))} of {len(body)} lines):")
    print("\n".join("    " + (line if len(line) <= 120 else line[:117] + "...") for line in body[:lines]))


def show_kernels(final):
    """One line for each fused region: how many calls became how many kernels, and what they move."""
    fused = sum(len(region.subsymbols) for region in final.regions)
    print(f"\nFused kernels: {fused} calls in {len(final.regions)} regions, beside {len(final.bound_symbols) - len(final.regions)} calls of torch")
    print(f"    {'region':10}{'calls':>6}{'kernels':>9}{'KB read':>9}{'written':>9}  from")
    for n, region in enumerate(final.regions):
        kernels = region.sym.fn.source.kernels
        read, written = (sum(getattr(k, f"bytes_{way}") for k in kernels) / 1e3 for way in ("read", "written"))
        lines = dict.fromkeys(str(b.source).rpartition("/")[2] for b in region.subsymbols if b.source.file)
        first, *_, last = [*lines, *lines]
        where = first if len(lines) < 2 else f"{first} ... {last}"
        print(f"    {n:<10}{len(region.subsymbols):6}{len(kernels):9}{read:9.1f}{written:9.1f}  {where}")


def largest_difference(caches):
    """Of two caches, as a share of the largest number in them."""
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*caches))


def report(jitted, run_eager, run_jitted, texts):
    """Prints what came out and what it cost; True when both runs left the same text, and caches equal up to rounding."""
    caches = [[t for layer in run.cache for t in layer] for run in (run_eager, run_jitted)]
    same_text, apart = texts[0] == texts[1], largest_difference(caches)
    print(f"\nThe text after {PROMPT!r}:")
    print("\n".join("    " + line for line in texts[1].splitlines()))

    info, final = jitted.cache_info(), jitted.last_traces[-1]
    print(f"\nidentical text: {'yes' if same_text else 'NO'}; largest difference of the caches: {apart:.1e} of the largest number")
    print(f"programs compiled: {info.entries}, for {len(run_jitted.seconds)} positions; "
          f"calls that fell back: {info.fallbacks}; copy_ in the final trace: {final.count('copy_')}")
    print(f"first call: jitted {run_jitted.seconds[0] * 1e3:.0f} ms (with the compile), "
          f"then eager {run_eager.seconds[0] * 1e3:.1f} ms")
    eager, fast = (statistics.median(run.seconds[1:]) * 1e6 for run in (run_eager, run_jitted))
    print(f"median of a step: eager {eager:.0f} us, jitted {fast:.0f} us, eager / jitted {eager / fast:.2f}")
    return same_text and apart < ROUNDING


def main():
    opts = options()
    torch.manual_seed(opts.seed)
    torch.set_num_threads(1)  # tensors this small gain little from more, and lose much on a busy machine
    text = TEXT.read_text()
    alphabet = sorted(set(text))
    number = {character: i for i, character in enumerate(alphabet)}
    prompt = [number[character] for character in PROMPT]
    model = CharTransformer(len(alphabet))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(text):,} characters, "
          f"torch {torch.__version__}")
    train(model, torch.tensor([number[character] for character in text]), opts.steps)

    jitted = tracejit.jit(model.decode_step, fallback="error")
    context = len(prompt) + opts.characters
    runs = [Decoder(step, model.new_cache(context)) for step in (model.decode_step, jitted)]
    decode(runs, prompt, opts.characters)
    show_trace(jitted, opts.lines)
    texts = ["".join(alphabet[token] for token in run.tokens[len(prompt) - 1:]) for run in runs]
    sys.exit(0 if report(jitted, *runs, texts) else 1)


if __name__ == "__main__":
    main()
