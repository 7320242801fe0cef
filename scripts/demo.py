"""A character transformer learns the LICENSE of this repository, then decodes with an in-place KV cache.

The training step (forward, backward, AdamW) and the decode step run eagerly and jitted, side by side.
Ends with status 1 when the losses begin to differ, the two generated texts differ, or the two caches by more than rounding.
"""
import argparse
import copy
import itertools
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
EARLY, DRIFT = 100, 1e-3        # steps of training in which rounding has not grown to this share of a loss


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="of training")
    parser.add_argument("--picture", type=Path, default=Path("loss.png"), help="where the losses are drawn")
    parser.add_argument("--characters", type=int, default=200, help="to decode")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and batches")
    parser.add_argument("--lines", type=int, default=40, help="of the final trace to print")
    return parser.parse_args()


class Trainer:
    """One training run: a model, its optimizer and schedule, and what each step lost and took."""

    def __init__(self, model, steps, jitted):
        self.model, self.optimizer = model, torch.optim.AdamW(model.parameters())
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=6e-3, total_steps=steps)
        self.step = tracejit.jit(self.plain_step, fallback="error") if jitted else self.plain_step
        self.losses, self.seconds = [], []

    def plain_step(self, characters):
        self.optimizer.zero_grad()
        scores = self.model(characters[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), characters[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def advance(self, characters):
        start = time.perf_counter()
        self.losses.append(self.step(characters))
        self.seconds.append(time.perf_counter() - start)
        self.schedule.step()     # changes the learning rate and the first beta, both inputs of the one program


def train(runs, data, steps, batch=16, length=96):
    """Training on random windows of the text, until the models know it nearly by heart; the runs take turns at going first."""
    windows = data.unfold(0, length + 1, 1)
    progress = tqdm(range(steps), desc="training", unit="step")
    for i in progress:
        chosen = windows[torch.randint(len(windows), (batch,))]
        for run in runs if i % 2 else reversed(runs):
            run.advance(chosen)
        progress.set_postfix(loss=f"{runs[-1].losses[-1]:.3f}", refresh=False)


def peak_of_a_step(run, characters):
    """Bytes that a step has allocated at most, beside what there was before it; the model trains one step more for it."""
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run.step(characters)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


def draw(picture, eager, fast):
    """The losses of both runs, one upon the other, as a PNG file."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    axes.plot(eager.losses, label="eager", linewidth=3, color="lightgray")
    axes.plot(fast.losses, label="jitted", linewidth=1)
    axes.set(xlabel="step of training", ylabel="loss", yscale="log", title="A character transformer learns a text")
    axes.legend()
    figure.savefig(picture, dpi=120)


def report_training(eager, fast, characters, picture):
    """Prints what training came to and cost; True when the losses of both runs begin alike."""
    apart = [abs(a - b) / a for a, b in zip(eager.losses, fast.losses)]
    info, kernels = fast.step.cache_info(), fast.step.kernels
    print(f"\ntraining: {len(eager.losses)} steps, loss {fast.losses[0]:.3f} to {fast.losses[-1]:.3f} (eager {eager.losses[-1]:.3f}); "
          f"difference of the losses at most {max(apart[:EARLY]):.1e} in the first {EARLY} steps, {max(apart):.1e} in all")
    print(f"programs compiled: {info.entries}; calls that fell back: {info.fallbacks}; kernels of the last one: {len(kernels)}")
    print("the first steps, with the compiles: " + ", ".join(f"{s * 1e3:.0f} ms" for s in fast.seconds[:3]))
    medians = [statistics.median(run.seconds[3:] or run.seconds) * 1e3 for run in (eager, fast)]
    print(f"median of a step: eager {medians[0]:.1f} ms, jitted {medians[1]:.1f} ms, eager / jitted {medians[0] / medians[1]:.2f}")
    peaks = [peak_of_a_step(run, characters) / 1e6 for run in (eager, fast)]
    print(f"memory that a step allocates at most: eager {peaks[0]:.1f} MB, jitted {peaks[1]:.1f} MB")
    draw(picture, eager, fast)
    print(f"losses drawn in {picture}")
    return max(apart[:EARLY]) < DRIFT


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
    data = torch.tensor([number[character] for character in text])
    trained = [Trainer(copy.deepcopy(model), opts.steps, jitted=False), Trainer(model, opts.steps, jitted=True)]
    train(trained, data, opts.steps)

    jitted = tracejit.jit(model.decode_step, fallback="error")
    context = len(prompt) + opts.characters
    runs = [Decoder(step, model.new_cache(context)) for step in (model.decode_step, jitted)]
    decode(runs, prompt, opts.characters)
    show_trace(jitted, opts.lines)
    texts = ["".join(alphabet[token] for token in run.tokens[len(prompt) - 1:]) for run in runs]
    same_text = report(jitted, *runs, texts)
    same_losses = report_training(*trained, data.unfold(0, 97, 1)[:16], opts.picture)
    sys.exit(0 if same_text and same_losses else 1)


if __name__ == "__main__":
    main()
